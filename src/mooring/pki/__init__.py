"""Public key infrastructure: keys, PEM, X.509 certificates and signed tokens, without I/O.

Import `keys` and `pem` for key and PEM files, `x509` for certificates, requests and verification, `jwt` for tokens. Every error
is an `errors.PkiError`.
"""
