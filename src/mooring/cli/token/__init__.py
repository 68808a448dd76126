"""`mooring token`: bootstrap tokens; one file for each verb."""
