"""Controllers as pure plans: given views and a time, each returns the actions that bring the cluster to its desired state.

Import `table` for all controllers and `actions` for their interface. `mooring.reconcile` runs them.
"""
