"""Keys that the servers of a cluster share through the store, and their files in each data directory."""
