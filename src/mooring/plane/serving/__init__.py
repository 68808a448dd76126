"""The serving certificate: the pair in force, the CAs that verify it, and the TLS context of new connections."""
