"""JSON Web Tokens: signing, key sets, one verification, and the claims of service account tokens.

Import `token` to sign and verify tokens of the cluster, `keyset` for key sets of other issuers and published documents,
`serviceaccount` for the claims of service accounts.
"""
