"""Metadata, field resets and print columns that all kinds share.

Any kind may import from here; nothing here imports an API group.
"""
