"""The CA bundles that verify client certificates, shared by the authenticators `x509` and `requestheader`.

`bundles` is pure. `runtime` follows the files. The rooms above import both.
"""
