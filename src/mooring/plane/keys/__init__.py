"""Keys, certificates and CAs of a server in its data directory."""
