"""Bootstrap tokens, with which machines join."""
