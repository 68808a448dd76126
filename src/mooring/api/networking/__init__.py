"""networking.k8s.io/v1: Ingress, read-only."""
