"""Handlers of the generic verbs of every stored kind, and watches as streaming replies.

The router imports `handlers`, which reads and writes through the registry only.
"""
