"""storage.k8s.io/v1: CSINode, and CSIDriver, which is read-only."""
