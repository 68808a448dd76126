"""Handlers of paths that are not stored resources: health, discovery, OpenAPI, metrics, reviews, tokens, login.

The router imports `routes`, `reviews`, `tokens` and `servedapi`. A new path is a handler here and a row in `routes`.
"""
