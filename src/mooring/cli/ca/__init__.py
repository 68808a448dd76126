"""`mooring ca …`: the CA of a cluster, and its replacement."""
