"""What Mooring promises, for each way in and each moment, with the test that proves it.

`columns.py` declares the columns, `rows.py` collects the rows, and each other module holds the rows of one gate.
"""
