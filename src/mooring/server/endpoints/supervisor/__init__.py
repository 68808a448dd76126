"""Handlers of k3s's supervisor API. A new path is a handler here and a row in `table.ROUTES`.

The control plane imports `table` and `services`; nothing else of the server imports from here.
"""
