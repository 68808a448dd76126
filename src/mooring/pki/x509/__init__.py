"""X.509: certificate requests, profiles, signers, the certificate authority, and verification of client certificates.

Import `authority` to issue, `profiles` for what is issued, `requests` and `signers` for CertificateSigningRequests, `verify` for
peers, `names` for subjects and alternative names, `crl` for revocation lists.
"""
