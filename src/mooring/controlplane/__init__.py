"""One server process put together: its configuration, its keys, its parts, and how they start and stop.

- `configuration`: the settings of every subject; `keystore`: keys and certificates on disk.
- `registry`, `authentication`, `serving/`, `monitoring`: the parts, which `assemble` builds in the order of their dependence.
- `lifecycle` starts and stops them; `serverprocess` adds the signals; `dryrun` reads all that a start reads and starts nothing.
- `firstboot`, `firsttoken`, `servicerange`, `configmaps`, `trustpublisher`: objects that a server itself writes.
- `compaction`, `trimming`, `lastuses`: work beside requests.

Commands import from here; nothing else does.
"""
