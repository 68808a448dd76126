"""Clients of Kubernetes API servers over the network: `cluster` for objects, `http` for connections, `login` for logins.

Import `trust` and the rooms below it. No module here imports `server`, `registry` or `agent`.
"""
