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
from mooring.settings.storage import StorageSettings, etcd_urls
from mooring.storage.commitsignal import CommitSignal
from mooring.storage.contract import Storage


def _memory(rest: str, clock: Clock, commits: CommitSignal | None, settings: StorageSettings) -> Storage:
    from mooring.storage.memory import MemoryStorage

    if rest:
        raise ConfigError("the storage URL memory: takes nothing after the colon; its data is lost on exit")
    return MemoryStorage()


def _sqlite(rest: str, clock: Clock, commits: CommitSignal | None, settings: StorageSettings) -> Storage:
    from mooring.storage.sqlite.driver import SqliteStorage

    if not rest:
        raise ConfigError(
            "the storage URL sqlite: needs the path of a file, for example sqlite:/var/lib/mooring/mooring.db"
        )
    return SqliteStorage(Path(rest), clock, commits)


def _etcd(rest: str, clock: Clock, commits: CommitSignal | None, settings: StorageSettings) -> Storage:
    if any(find_spec(name) is None for name in ("grpc", "google", "google.protobuf")):
        raise ConfigError("storage: etcd needs the libraries grpcio and protobuf; install mooring[etcd]")
    from mooring.storage.etcd.driver import EtcdStorage

    servers = etcd_urls(rest.split(","), "storage")
    if not servers:
        raise ConfigError("the storage URL etcd: needs client URLs, for example etcd:https://10.0.0.1:2379")
    return EtcdStorage(servers, settings, clock)


DRIVERS: Mapping[str, Callable[[str, Clock, CommitSignal | None, StorageSettings], Storage]] = {
    "etcd": _etcd,
    "memory": _memory,
    "sqlite": _sqlite,
}


def open_storage(
    url: str, clock: Clock, commits: CommitSignal | None = None, settings: StorageSettings = StorageSettings()
) -> Storage:
    """Return the store of a URL `<scheme>:<rest>`, not opened yet. Raises ConfigError for an unknown scheme.

    `commits`: signals between the workers of a server, for drivers whose store sends none of its own. `settings`: prefix
    and credentials, for a store in etcd.
    """
    scheme, colon, rest = url.partition(":")
    driver = DRIVERS.get(scheme)
    if driver is None or not colon:
        known = ", ".join(f"{name}:" for name in sorted(DRIVERS))
        raise ConfigError(
            f"storage: the URL must start with one of {known} (for example sqlite:/var/lib/mooring/mooring.db)"
        )
    return driver(rest, clock, commits, settings)
