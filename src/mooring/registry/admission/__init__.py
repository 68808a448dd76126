"""Admission plugins: synchronous checks and defaults of one write, between defaulting and validation.

Import `table` to build all plugins and `request` for their types. A new plugin is a file here and a row in `table.PLUGINS`.
"""
