"""`mooring node`: the machines of a cluster, for people without kubectl."""
