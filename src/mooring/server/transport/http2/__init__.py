"""HTTP/2 (RFC 9113): `connection` serves all streams, `stream` is one exchange, `floodguard` bounds what clients send."""
