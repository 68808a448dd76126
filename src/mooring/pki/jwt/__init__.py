"""JSON Web Tokens: signing, key sets, one verification, and the claims of service account tokens.

Import `token` to sign and verify tokens of the cluster, `jwks` for key sets of other issuers and published documents, `claims` and
`compact` for the parts of a token, `serviceaccount` for its claims.
"""
