"""Authorization: the chain of authorizers (Node, RBAC, AlwaysAllow, AlwaysDeny) and the answers of access reviews.

Import `table` for the configured authorizers, `decision` for a decision and its types, `review` to answer a review.
"""
