"""Table of storage drivers by URL scheme; whether a store is there and in use, before it is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from mooring.clock import Clock
from mooring.errors import ConfigError
from mooring.settings.storage import ETCD, MEMORY, SQLITE, StorageSettings, storage_url
from mooring.storage.commitsignal import CommitSignal
from mooring.storage.contract import Storage

# Presence and use of a store, by its URL, before it is opened.
#
# Rules kept here: a command that reads a store does not create an empty one by opening it, and one that moves a store does not do
# so under a running server. A driver that can answer has a row.


def _check_sqlite_file(rest: str) -> None:
    if not Path(rest).exists():
        raise ConfigError(f"there is no database {rest}; check the path")


def _refuse_open_sqlite_file(rest: str) -> None:
    from mooring.storage.sqlite.database import is_open

    _check_sqlite_file(rest)
    if is_open(Path(rest)):
        raise ConfigError(f"the database {rest} is in use: stop every server that uses it, and run the command again")


EXISTENCE_CHECKS: Mapping[str, Callable[[str], None]] = {"sqlite": _check_sqlite_file}
"""Raise ConfigError for a store that is not there, and that opening it would create. Drivers that create none have no row."""
USE_CHECKS: Mapping[str, Callable[[str], None]] = {"sqlite": _refuse_open_sqlite_file}
"""Raise ConfigError for a store that a process has open. Drivers that cannot know have no row."""


def check_existence(url: str) -> None:
    """Raise ConfigError when the store of a URL is not there."""
    scheme, _, rest = url.partition(":")
    try:
        if scheme in EXISTENCE_CHECKS:
            EXISTENCE_CHECKS[scheme](rest)
    except ConfigError as error:
        raise ConfigError(
            f"{error}: this command reads the store of a server, and no kubeconfig; give --data-dir or --storage"
        ) from None


def refuse_used(url: str) -> bool:
    """Raise ConfigError when a process has the store of a URL open. Return whether the driver can know."""
    scheme, _, rest = url.partition(":")
    if scheme not in USE_CHECKS:
        return False
    USE_CHECKS[scheme](rest)
    return True


# Table of storage drivers by URL scheme.
#
# Rules kept here: a driver is one row of `DRIVERS` and passes the conformance suite of `tests/storage`. Callers see
# `contract.Storage` only. The module of a driver is imported when its scheme is used, so that commands without storage do not
# load it.


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
