"""Garbage collector of objects whose owners are gone, and its index of dependents."""
