"""Which names a certificate may have, and whose they are."""
