"""Presence and use of a store, by its URL, before it is opened.

Rules kept here: a command that reads a store does not create an empty one by opening it, and one that moves a store does not do so
under a running server. A driver that can answer has a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from mooring.errors import ConfigError


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
