"""Service: predicates on its spec, strategy, validation, warnings, print columns, and allocation of IPs and ports.

Import `strategy.KIND` for the kind; admission imports `allocation` and `spec`.
"""
