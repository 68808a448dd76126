"""`mooring controllers` and its commands: controllers against any Kubernetes API server."""
