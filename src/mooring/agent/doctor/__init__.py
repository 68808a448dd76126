"""Diagnosis of a machine, for `mooring doctor`: `run.diagnose` performs the steps of the other files."""
