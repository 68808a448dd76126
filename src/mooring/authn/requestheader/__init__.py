"""Users that an authenticating proxy names in headers."""
