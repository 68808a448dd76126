"""`mooring csr`: certificate signing requests; one file for each verb, `details` and `decision` for what they share."""
