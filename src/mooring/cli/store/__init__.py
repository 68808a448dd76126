"""`mooring store`: the database of a server; one file for each verb."""
