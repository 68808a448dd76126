"""`mooring snapshot`: copies of a cluster in files; one file for each verb."""
