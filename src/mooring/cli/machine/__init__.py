"""`mooring machine`: the inventory of machines that may join; one file for each verb."""
