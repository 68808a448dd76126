"""Follows a CSV file of users.

Rules kept here (docs/protocol/authentication.md; better than kube-apiserver, which reads such files once):
* A file that is wrong stops the start, and is not used when it becomes wrong later. The error names the flag, the file and the
  line, and no content of the file.
* Each reading logs the lines that have no effect, and a warning when other users of this machine can read or change the file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from mooring.authn.host import Files
from mooring.errors import ConfigError

log = logging.getLogger("mooring.authentication")

MAX_WARNINGS = 20
"""Warnings that one reading logs. Beyond that, their number is logged."""


class Table(Protocol):
    """The content of a file, and warnings for its owner."""

    @property
    def warnings(self) -> tuple[str, ...]: ...


T = TypeVar("T", bound=Table)


def follow(key: str, path: str, read: Callable[[bytes], T], take: Callable[[T], None], files: Files) -> None:
    """Give `take` what `read` makes of the file at `path`, now and after each change. `key` is the flag that names the file.

    Raises ConfigError.
    """

    def prepare(data: bytes) -> Callable[[], None]:
        try:
            table = read(data)
        except ConfigError as error:
            raise ConfigError(f"{key}: {path}: {error}") from None
        return partial(use, table)

    def use(table: T) -> None:
        take(table)
        for warning in table.warnings[:MAX_WARNINGS]:
            log.warning("%s: %s: %s", key, path, warning)
        if len(table.warnings) > MAX_WARNINGS:
            log.warning("%s: %s: %d more warnings", key, path, len(table.warnings) - MAX_WARNINGS)
        files.warn_if_exposed(path)

    prepare(files.follow_prepared(path, prepare))()
