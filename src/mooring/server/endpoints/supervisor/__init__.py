"""Handlers of k3s's supervisor API. A new path is a handler here and a row in `routes`.

The control plane imports them; nothing else of the server imports from here.
"""
