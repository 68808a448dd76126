"""HTTP client: connections, TLS, credentials, and the driver that performs the exchanges of `mooring.trust`."""
