"""Controllers of bootstrap tokens: the signer of cluster-info and the token cleaner."""
