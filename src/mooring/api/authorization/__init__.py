"""authorization.k8s.io/v1: the four access reviews, which are answered and never stored."""
