"""Writes: create, update, patch, server-side apply and delete of one object, up to compare-and-swap.

The registry's store imports `writer`. The other files hold its rules: `serversideapply` (field managers; conflicts are decided in
`mooring.apimachinery.apply.managedfields`), `deletion`, `claims` (unique values), `errors`.
"""
