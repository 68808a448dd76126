"""node.k8s.io/v1: RuntimeClass, read-only. Nodes are of the core group."""
