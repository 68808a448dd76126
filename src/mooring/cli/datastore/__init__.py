"""`mooring datastore`: the store of a cluster; one file for each verb."""
