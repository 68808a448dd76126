"""`mooring certs`: keys and certificates with and without a cluster; one file for each verb, `inventory` for what they share."""
