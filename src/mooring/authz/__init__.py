"""Authorization: the chain of authorizers (Node, RBAC, AlwaysAllow, AlwaysDeny) and the answers of access reviews.

Import `table.build` for the configured authorizers, `chain.authorize` for a decision, `attributes` and `decision` for its types.
"""
