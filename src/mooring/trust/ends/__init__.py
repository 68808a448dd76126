"""Ends that a server remembers outside the store: what was revoked, deleted, used up or replaced."""
