"""The CA bundles that verify client certificates, shared by the authenticators `x509` and `requestheader`.

`mooring.server.authentication.providers.clientcas` follows the files.
"""
