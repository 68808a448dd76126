"""`mooring auth`: the identity of a caller, refused requests, and password hashes."""
