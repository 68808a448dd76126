"""Namespace deletion, and the check for active namespaces that other controllers import from `phase`."""
