"""The `mooring` command: one folder or file for each noun, and the table of all commands in `commands`.

Commands share `cluster` (connection to a cluster), `options` (flags and settings) and `printing` (output and redaction). A noun
imports another noun only for a step that both perform.
"""
