"""Flags that several commands share.

- `flags`: types of values; `client`: flags of commands that talk to a cluster.
- `declared` makes flags from declared settings; `configfile` reads `--config`; `machine` finds out defaults; `server` brings them
  together for the commands that start a server.

Imported by commands only.
"""
