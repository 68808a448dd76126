"""HTTP/1.1 (RFC 9112): `connection` parses and orders requests, `exchange` answers one of them."""
