"""CSV files that name users, shared by the authenticators `tokenfile` and `passwordfile`.

`rows` is pure and reads a file. `runtime` follows one.
"""
