"""`mooring certs`: certificates of a cluster and without one. `byhand` makes them, `show` lists them, `inventory` is shared."""
