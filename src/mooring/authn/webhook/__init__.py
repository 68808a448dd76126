"""Bearer tokens that a service of the operator reviews."""
