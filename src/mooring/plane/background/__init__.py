"""Work of a server beside its requests: compaction, last uses, the end of the lineage, the CRL, and memory."""
