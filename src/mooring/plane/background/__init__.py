"""Work of a server beside its requests: compaction, last uses, expiry warnings, the CRL, and memory."""
