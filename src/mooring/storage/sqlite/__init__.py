"""The SQLite storage driver. Only `storage.table` imports `driver`; the other modules are internal to this folder."""
