"""Table of storage drivers by URL scheme.

Rules kept here: a driver is one row of `DRIVERS` and passes the conformance suite of `tests/storage`. Callers see
`contract.Storage` only. The module of a driver is imported when its scheme is used, so that commands without storage do not load
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from mooring.clock import Clock
from mooring.errors import ConfigError
from mooring.settings.storage import ETCD, MEMORY, SQLITE, StorageSettings, storage_url
from mooring.storage.commitsignal import CommitSignal
from mooring.storage.contract import Storage


def _memory(rest: str, clock: Clock, commits: CommitSignal | None, settings: StorageSettings) -> Storage:
    from mooring.storage.memory import MemoryStorage

    return MemoryStorage()


def _sqlite(rest: str, clock: Clock, commits: CommitSignal | None, settings: StorageSettings) -> Storage:
    from mooring.storage.sqlite.driver import SqliteStorage

    return SqliteStorage(Path(rest), clock, commits)


def _etcd(rest: str, clock: Clock, commits: CommitSignal | None, settings: StorageSettings) -> Storage:
    if any(find_spec(name) is None for name in ("grpc", "google", "google.protobuf")):
        raise ConfigError("storage: etcd needs the libraries grpcio and protobuf; install mooring[etcd]")
    from mooring.storage.etcd.driver import EtcdStorage

    return EtcdStorage(tuple(rest.split(",")), settings, clock)


DRIVERS: Mapping[str, Callable[[str, Clock, CommitSignal | None, StorageSettings], Storage]] = {
    ETCD: _etcd,
    MEMORY: _memory,
    SQLITE: _sqlite,
}


def open_storage(
    url: str, clock: Clock, commits: CommitSignal | None = None, settings: StorageSettings = StorageSettings()
) -> Storage:
    """Return the store of a URL `<scheme>:<rest>`, not opened yet. Raises ConfigError for a URL that `storage_url` refuses.

    `commits`: signals between the workers of a server, for drivers whose store sends none of its own. `settings`: prefix
    and credentials, for a store in etcd.
    """
    scheme, _, rest = storage_url(url, "storage").partition(":")
    return DRIVERS[scheme](rest, clock, commits, settings)
