"""Kubeconfigs: data model, text, and edits. Nothing here reads a file."""
