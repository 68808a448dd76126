"""`mooring secrets-encryption …`: the keys that encrypt stored objects."""
