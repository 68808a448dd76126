"""`mooring audit`: the records of issued certificates; one file for each verb."""
