"""CSV files that name users, shared by the authenticators `tokenfile` and `passwordfile`.

`rows` reads the content of a file, which `mooring.server.authentication.providers.userfile` follows.
"""
