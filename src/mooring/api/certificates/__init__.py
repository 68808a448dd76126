"""certificates.k8s.io: CertificateSigningRequest, PodCertificateRequest and ClusterTrustBundle.

Controllers and commands import `requeststate` and `requestrecords`.
"""
