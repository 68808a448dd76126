"""Flags that several commands share.

- `flags`: types of values, and flags of commands that talk to a cluster.
- `declared` makes flags from declared settings; `configfile` reads `--config`; `server` brings them together for the commands that
  start a server.

Imported by commands only.
"""
