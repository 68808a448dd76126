"""certificates.k8s.io/v1: CertificateSigningRequest, its validation, and its `/approval` and `/status` strategies.

Controllers import `conditions`.
"""
