"""Files that may change while the server runs: bundles of CAs, tokens, passwords, configurations.

Rules kept here:
* A file is looked at every second. When its identity, size or time of change differ, and it has rested for a look since, it
  is read: who writes in place instead of renaming is not caught half-way.
* What was read is applied whole or not at all: when it cannot be read or is wrong, the last good content stays in force, and
  the log says so once per change.
* At start there is no last good content: a file that is wrong then stops the start.
* Editors replace files (rename) and Kubernetes swaps symbolic links (`..data`): both are changes of identity.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mooring.client.files import read_limited
from mooring.clock import Clock
from mooring.errors import MooringError

log = logging.getLogger("mooring.reload")

LOOK_SECONDS = 1.0
"""A stat of a few files; kube-apiserver, which is told by the kernel, looks every minute beside that."""

Apply = Callable[[bytes], None]
_State = tuple[int, int, int, int] | None


@dataclass(slots=True)
class _File:
    path: Path
    apply: Apply
    applied: _State
    seen: _State


class Reloading:
    """The files of one server."""

    def __init__(self) -> None:
        self._files: list[_File] = []

    def add(self, path: str, apply: Apply) -> None:
        """Read `path` now and apply it; again after every change. Raises what `apply` raises, and ConfigError, now."""
        file = Path(path)
        state = _state(file)
        apply(read_limited(file))
        self._files.append(_File(file, apply, state, state))

    def look(self) -> None:
        """Apply what has changed and has rested since the last look."""
        for file in self._files:
            before, file.seen = file.seen, _state(file.path)
            if file.seen == file.applied or file.seen != before:
                continue
            file.applied = file.seen
            try:
                file.apply(read_limited(file.path))
            except MooringError as error:
                log.error("%s was changed and is not used, the last good content stays in force: %s", file.path, error)
            else:
                log.info("%s was changed and has been read", file.path)

    async def run(self, clock: Clock) -> None:
        """Look for ever."""
        while True:
            await clock.sleep(LOOK_SECONDS)
            self.look()


def _state(file: Path) -> _State:
    """What changes when the content does; None when there is no file."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
