"""Storage: revisions and bytes, without knowledge of kinds.

Import `contract` for the interface and its errors, and `drivers` for a driver by URL. Drivers are not imported directly.
"""
