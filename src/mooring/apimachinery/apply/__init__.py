"""Server-side apply: apply configurations, structured merge, field sets, managed fields and conflicts.

Import `applyconfiguration` to decode the body, and `managedfields` to apply it, which also decides which changed fields belong to
other managers; `structuredmerge` and `fieldset` are its tools.
"""
