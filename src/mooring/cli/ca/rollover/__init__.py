"""`mooring ca rollover …`: replace the CA of a cluster, phase by phase."""
