"""Bootstrap tokens: their grammar, and the Secrets that hold them."""
