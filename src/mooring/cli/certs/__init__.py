"""`mooring certs`: keys and certificates without a cluster; one file for each verb, `files` for what they share."""
