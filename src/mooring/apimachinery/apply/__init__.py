"""Server-side apply: apply configurations, structured merge, field sets and managed fields.

Import `applyconfiguration` to decode the body, and `managedfields` to apply it and to decide conflicts; `structuredmerge` and
`fieldset` are their tools.
"""
