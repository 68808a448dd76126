"""Patches: JSON Patch (`json`), JSON merge patch (`merge`) and strategic merge patch (`strategic`)."""
