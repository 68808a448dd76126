"""Trust in a cluster, without I/O: discovery, tokens, kubeconfigs, logins, and the exchanges that a client driver performs.

Import modules of `pki`, `apimachinery` and below. `mooring.client` and `mooring.agent` perform what this room decides.
"""
