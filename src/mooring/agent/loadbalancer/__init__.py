"""Load balancer of an agent: one address on this machine for all servers of the cluster."""
