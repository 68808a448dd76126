"""authentication.k8s.io: TokenReview, SelfSubjectReview, TokenRequest; all are answered and never stored.

`userinfo` converts an identity to its JSON form; the server imports it.
"""
