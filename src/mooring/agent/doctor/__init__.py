"""Diagnosis of a machine, for `mooring doctor`: `run.diagnose` performs the steps, with `machine` and `probes` beside it."""
