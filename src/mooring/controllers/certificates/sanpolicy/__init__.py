"""Which names a certificate may have, and whose they are.

`rules` judges, `evidence` is what it judges by, `check` and `ownership` are issuance checks.
"""
