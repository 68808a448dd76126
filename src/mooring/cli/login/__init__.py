"""`mooring login`, `logout` and `credential`: logins for kubectl, their renewal, and their kubeconfig entries."""
