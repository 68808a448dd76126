"""The process of a server: its start and stop, its identity, and its place among workers."""
