"""Mooring: a Kubernetes-compatible control plane for identity and trust."""

__version__ = "0.1.0"
