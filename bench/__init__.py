"""`make bench`: Mooring's figures beside those of Kubernetes 1.36.2 (see docs/operate.md)."""
