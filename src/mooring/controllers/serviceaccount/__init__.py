"""Controllers of ServiceAccounts and of the tokens in Secrets: creation, token signing, tracking and clean-up of legacy tokens."""
