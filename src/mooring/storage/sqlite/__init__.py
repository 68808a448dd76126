"""The SQLite storage driver. Only `storage.drivers` imports `driver`; the other modules are internal to this folder."""
