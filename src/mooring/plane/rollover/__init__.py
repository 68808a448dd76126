"""Rollover of the cluster's CA in one server: its steps on disk (`files`), and the runner that takes them (`runner`)."""
