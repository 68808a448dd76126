"""User tokens, which `mooring login` gets, and the rules for trading a provider's credential for one of the cluster."""
