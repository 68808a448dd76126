"""Handlers of paths that are not stored resources: health, discovery, OpenAPI, metrics, reviews, tokens, login.

The router imports `table`, `reviews`, `tokenrequest` and `notfound`. A new path is a handler here and a row in `table.ENDPOINTS`.
"""
