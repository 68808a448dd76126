"""`mooring doctor`: the way from a machine to its cluster, and with `--cluster` the risks of a cluster."""
