"""Files that may change while the server runs: bundles of CAs, tokens, passwords, configurations.

Rules kept here:
* A file is looked at every second. When its identity, size or time of change differ, and it has rested for a look since, it
  is read: who writes in place instead of renaming is not caught half-way.
* What was read is applied whole or not at all: when it cannot be read or is wrong, the last good content stays in force, and
  the log says so once per change.
* A changed file is read, and understood where that takes long, in a thread: nobody waits for it. It takes over on the event loop,
  between two requests.
* At start there is no last good content: a file that is wrong then stops the start.
* Editors replace files (rename) and Kubernetes swaps symbolic links (`..data`): both are changes of identity.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mooring.client.files import read_limited
from mooring.clock import Clock
from mooring.errors import MooringError

log = logging.getLogger("mooring.reload")

LOOK_SECONDS = 1.0
"""A stat of a few files; kube-apiserver, which is told by the kernel, looks every minute beside that."""

Apply = Callable[[bytes], None]
Prepare = Callable[[bytes], Callable[[], None]]
_State = tuple[int, int, int, int] | None


@dataclass(slots=True)
class _File:
    path: Path
    prepare: Prepare
    applied: _State
    seen: _State


class Reloading:
    """The files of one server."""

    def __init__(self) -> None:
        self._files: list[_File] = []

    def add(self, path: str, apply: Apply) -> None:
        """Read `path` now and apply it; again after every change. Raises what `apply` raises, and ConfigError, now."""
        self.add_long(path, lambda data: partial(apply, data))

    def add_long(self, path: str, prepare: Prepare) -> None:
        """Likewise, for content that takes long to understand: `prepare` does that, in a thread, and changes nothing. What it
        returns is called on the event loop.
        """
        file = Path(path)
        state = _state(file)
        prepare(read_limited(file))()
        self._files.append(_File(file, prepare, state, state))

    def look(self) -> None:
        """Apply what has changed and has rested since the last look."""
        for file in self._changed():
            with _told(file.path):
                _prepared(file)()

    async def run(self, clock: Clock) -> None:
        """Look for ever."""
        while True:
            await clock.sleep(LOOK_SECONDS)
            for file in self._changed():
                with _told(file.path):
                    (await asyncio.to_thread(_prepared, file))()

    def _changed(self) -> Iterator[_File]:
        for file in self._files:
            before, file.seen = file.seen, _state(file.path)
            if file.seen != file.applied and file.seen == before:
                file.applied = file.seen
                yield file


def _prepared(file: _File) -> Callable[[], None]:
    return file.prepare(read_limited(file.path))


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except MooringError as error:
        log.error("%s was changed and is not used, the last good content stays in force: %s", path, error)
    else:
        log.info("%s was changed and has been read", path)


def _state(file: Path) -> _State:
    """What changes when the content does; None when there is no file."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
