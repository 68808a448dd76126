"""The registry: the one way objects are read and changed (law 6). Begin with `mooring.registry.store`."""
