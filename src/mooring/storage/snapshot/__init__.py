"""Snapshots of a store: the format of the file (`format.py`), and reading a store at one revision (`capture.py`)."""
