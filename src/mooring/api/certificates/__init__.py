"""certificates.k8s.io: ClusterTrustBundle; CertificateSigningRequest, its validation, and its `/approval` and `/status` strategies.

Controllers import `conditions`.
"""
