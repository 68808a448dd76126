"""Agent of a machine: joins a cluster, renews the client certificate, and reports the Node.

Import `client`, `trust` and the rooms below. The command line runs it; no other room imports it.
"""
