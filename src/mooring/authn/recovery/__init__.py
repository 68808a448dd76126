"""Machines whose node certificate expired while they were off: they prove possession of its key, and may request another."""
