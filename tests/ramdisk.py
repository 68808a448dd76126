"""`make test`: temporary directories of its tests in memory, in the pytest session.

Rules kept here:
* The file system of `/dev/shm` is used where it has room and programs may be run from it, and unless the command line or the
  environment names another place. Scenarios stay on the disk, which they are about.
* Each session has a directory of its own and deletes it at its end. What a killed session left is deleted by the next one: the
  directory of a live session is locked.
* Paths are no longer than those of pytest's own choice, because that of a socket has 108 bytes at most.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
MEMINFO = Path("/proc/meminfo")
SELECTION = "not scenario"
"""What `make test` selects."""
PREFIX = "mooring-run-"
SPACE = 1 << 30
"""Bytes that must be free, in the file system and in memory. What tests that passed leave is deleted: 100 MiB are in use."""
OTHER_PLACE = ("TMPDIR", "PYTEST_DEBUG_TEMPROOT")
"""Variables that say where temporary directories are."""


def has_room(folder: Path, meminfo: str) -> bool:
    """Return whether temporary directories may be in a folder. `meminfo`: the text of /proc/meminfo."""
    try:
        there = os.statvfs(folder)
    except OSError:
        return False
    available = dict(line.split()[:2] for line in meminfo.splitlines()).get("MemAvailable:", "0")
    free = min(there.f_bavail * there.f_frsize, int(available) * 1024)
    return free >= SPACE and not there.f_flag & os.ST_NOEXEC and os.access(folder, os.W_OK)


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Lock a directory until the block ends. Raises OSError when a live session has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def delete_abandoned(memory: Path) -> None:
    """Delete directories of sessions that were killed."""
    for folder in memory.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), lock(folder):
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def directory_of_session(memory: Path) -> Iterator[Path]:
    """Make and lock a directory, and delete it after the block. Raises OSError, also when another session took it for abandoned."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=memory))
    try:
        with lock(folder):
            if not folder.exists():
                raise FileNotFoundError(folder)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)  # before pytest chooses
def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr != SELECTION or config.option.basetemp or any(map(os.environ.get, OTHER_PLACE)):
        return
    with contextlib.suppress(OSError):
        if has_room(MEMORY, MEMINFO.read_text()):
            delete_abandoned(MEMORY)
            session = contextlib.ExitStack()
            config.option.basetemp = session.enter_context(directory_of_session(MEMORY)) / "t"
            config.add_cleanup(session.close)
