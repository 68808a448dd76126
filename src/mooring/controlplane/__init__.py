"""One server process put together: its configuration, its keys, its parts, and how they start and stop.

- `configuration`: the settings of every subject; `datadirectory`, `keystore`: files, keys and certificates on disk.
- `parts`: what `assemble` builds in the order of dependence.
- `lifecycle` starts and stops them; `serverprocess` adds the signals; `dryrun` reads all that a start reads and starts nothing.
- `publishing`: objects that a server itself writes. `sharedkeys`, `storewatermark`: what servers of one cluster agree on.
- `maintenance`, `expirywatch`, `revocationlist`, `snapshots`: work beside requests.

Commands import from here; nothing else does.
"""
