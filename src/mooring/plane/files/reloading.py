"""Files that may change while the server runs: bundles of CAs, tokens, passwords, configurations.

Rules kept here:
* Every second the identity, the size and the modification time of each file are compared with those of the last reading. A
  changed file is read one look later, if it has not changed again, so that a file which is written in place is not read
  half-written. One that a program writes again every second is read every ten looks, as it is then.
* New content is used whole or not at all. When the file cannot be read or its content is wrong, the last good content stays in
  force, and the log says so once for each change. Such a file is read again every ten looks without a change of it: the read may
  have failed for want of a descriptor, or the content for another file.
* A changed file is read in a thread, and prepared there where that takes long, so that no request waits. It comes into force on the
  event loop, between two requests.
* At start there is no last good content: a file that cannot be used stops the start.
* Editors replace files (rename) and Kubernetes swaps symbolic links (`..data`): both change the identity of the file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mooring.client.files import MAX_READ, read_limited
from mooring.clock import Clock
from mooring.errors import MooringError
from mooring.observed import Observed
from mooring.plane.files.datadirectory import warn_if_exposed

log = logging.getLogger("mooring.reload")

LOOK_SECONDS = 1.0
"""Between two looks, which cost one stat of each file. kube-apiserver uses inotify, and looks every minute beside that."""

RETRY_LOOKS = 10
"""Looks until a file is read again that could not be used, and until one is read that changes at every look."""

Use = Callable[[bytes], None]
Prepare = Callable[[bytes], Callable[[], None]]
_State = tuple[int, int, int, int] | None


@dataclass(slots=True)
class _Followed:
    """Files that are read together, most often one."""

    paths: tuple[Path, ...]
    prepare: Callable[[], Callable[[], None]]
    read_at: tuple[_State, ...]
    seen: tuple[_State, ...]
    problem: str = ""
    """Why the content that was read last is not used."""
    moving: int = 0
    """Looks in a row that found another change."""
    looks: int = 0
    """Looks until it is read again in spite of that."""


class Reloading(Observed[[]]):
    """The followed files of one server. Implements `mooring.authn.host.Files`."""

    def __init__(self) -> None:
        self._files: list[_Followed] = []
        super().__init__()

    def follow(self, path: str, use: Use) -> bytes:
        """Return the content of `path`, and call `use` with the new content after each change.

        Raises ConfigError when the file cannot be read now. `use` raises MooringError for content that it does not take.
        """
        return self.follow_prepared(path, lambda data: partial(use, data))

    def follow_prepared(self, path: str, prepare: Prepare) -> bytes:
        """Return the content of `path`, and call `prepare` in a thread with the new content after each change.

        The function that `prepare` returns is then called on the event loop. `prepare` itself changes nothing.
        """
        file = Path(path)
        state = _state(file)
        data = read_limited(file)
        self._files.append(_Followed((file,), lambda: prepare(read_limited(file)), (state,), (state,)))
        return data

    def follow_files(self, paths: Sequence[str | Path], prepare: Callable[[], Callable[[], None]]) -> None:
        """Call `prepare` in a thread after each change of one of `paths`, some of which may be missing.

        The function that `prepare` returns is then called on the event loop.
        """
        files = tuple(map(Path, paths))
        state = _states(files)
        self._files.append(_Followed(files, prepare, state, state))

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        """Return the content of `path`. Raises ConfigError, also when it is larger than `limit` bytes."""
        return read_limited(Path(path), limit)

    def warn_if_exposed(self, path: str) -> None:
        """Log a warning when other users of this machine can change the file, or every user can read it."""
        warn_if_exposed(Path(path))

    async def run(self, clock: Clock) -> None:
        """Look at the files every LOOK_SECONDS until cancelled."""
        while True:
            await clock.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Use the content of each file that changed and has not changed since the last look."""
        for file in self._changed():
            with _logged(file):
                (await asyncio.to_thread(file.prepare))()
                self.notify()

    def _changed(self) -> Iterator[_Followed]:
        for file in tuple(self._files):
            before, file.seen = file.seen, _states(file.paths)
            file.moving = file.moving + 1 if file.seen != before else 0
            if file.moving % RETRY_LOOKS:
                continue
            if file.seen != file.read_at:
                file.read_at, file.problem = file.seen, ""
                yield file
            elif file.problem:
                file.looks -= 1
                if not file.looks:
                    yield file


@contextmanager
def _logged(file: _Followed) -> Iterator[None]:
    try:
        yield
    except MooringError as error:
        if str(error) != file.problem:
            log.error("%s was changed and is not used, the last good content stays in force: %s", file.paths[0], error)
        file.problem, file.looks = str(error), RETRY_LOOKS
    else:
        file.problem = ""
        log.info("%s was changed and has been read", file.paths[0])


def _states(files: Sequence[Path]) -> tuple[_State, ...]:
    return tuple(map(_state, files))


def _state(file: Path) -> _State:
    """Return numbers that change with the content of the file; None when there is no file."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
