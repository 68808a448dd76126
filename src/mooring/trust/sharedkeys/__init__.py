"""Keys that all servers of a cluster need: the set of them, the server token, and the sealed form in the store."""
