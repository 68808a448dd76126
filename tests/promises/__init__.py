"""Promises of Mooring to its users, with the tests that hold them: one TOML file for each gate, read by `table.py`."""
