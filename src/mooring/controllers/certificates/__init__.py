"""Controllers of CertificateSigningRequests (approver, signer, cleaner) and the root CA certificate publisher."""
