"""Table of storage drivers by URL scheme.

Rules kept here: a driver is one row of `DRIVERS` and passes the conformance suite of `tests/storage`. Callers see
`contract.Storage` only. The module of a driver is imported when its scheme is used, so that commands without storage do not load
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from mooring.clock import Clock
from mooring.errors import ConfigError
from mooring.storage.contract import Storage


def _memory(rest: str, clock: Clock) -> Storage:
    from mooring.storage.memory import MemoryStorage

    if rest:
        raise ConfigError("the storage URL memory: takes nothing after the colon; its data is lost on exit")
    return MemoryStorage()


def _sqlite(rest: str, clock: Clock) -> Storage:
    from mooring.storage.sqlite.driver import SqliteStorage

    if not rest:
        raise ConfigError(
            "the storage URL sqlite: needs the path of a file, for example sqlite:/var/lib/mooring/mooring.db"
        )
    return SqliteStorage(Path(rest), clock)


DRIVERS: Mapping[str, Callable[[str, Clock], Storage]] = {
    "memory": _memory,
    "sqlite": _sqlite,
}


def open_storage(url: str, clock: Clock) -> Storage:
    """Return the store of a URL `<scheme>:<rest>`, not opened yet. Raises ConfigError for an unknown scheme."""
    scheme, colon, rest = url.partition(":")
    driver = DRIVERS.get(scheme)
    if driver is None or not colon:
        known = ", ".join(f"{name}:" for name in sorted(DRIVERS))
        raise ConfigError(
            f"storage: the URL must start with one of {known} (for example sqlite:/var/lib/mooring/mooring.db)"
        )
    return driver(rest, clock)
