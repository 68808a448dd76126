"""`mooring node`: the machines of a cluster, for people without kubectl; one file for each verb."""
