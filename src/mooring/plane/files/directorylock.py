"""Lock of a data directory: one server, or one command that changes what a server has open.

Rules kept here:
* It is another lock than that of single writes (`keystore.exclusive`): it is held for the life of a server, by the parent and
  each worker, and no process waits for it. A second server would publish its own address and rewrite the kubeconfigs.
* After `kill -9` of a parent its workers drain and hold the lock until they have ended. The process that the file names is then
  gone, and a start waits for the workers; a service manager starts a server again within a second.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mooring.client.files import make_directory
from mooring.errors import ConfigError
from mooring.plane.files.lockfile import no_lock, open_lock, refuse_other_writers

log = logging.getLogger("mooring.plane")

FILE = "server.lock"
DRAIN_SECONDS = 90.0
"""Time that the workers of an ended parent may take: longer than they drain."""
LOOK_SECONDS = 0.1


@contextmanager
def only_server(data_dir: Path, pause: Callable[[float], None] = time.sleep) -> Iterator[None]:
    """Hold the directory. Raises ConfigError while a server or a command has it."""
    make_directory(data_dir)
    refuse_other_writers(data_dir)
    descriptor = open_lock(data_dir / FILE)
    try:
        _take(descriptor, data_dir, pause)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)  # the lock is held until the last worker has closed it, too


def _take(descriptor: int, data_dir: Path, pause: Callable[[float], None]) -> None:
    left, is_told = DRAIN_SECONDS, False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            if left <= 0 or holder is None or _lives(holder):
                who = "another process" if holder is None else f"the process {holder}"
                raise ConfigError(
                    f"{data_dir} is used by {who}, a server or a command that changes it; stop that first, or choose another "
                    "directory with --data-dir"
                ) from None
            if not is_told:
                log.warning("the server of %s has ended, and its workers are draining; waiting for them", data_dir)
                is_told = True
            pause(LOOK_SECONDS)
            left -= LOOK_SECONDS
        except OSError as error:
            raise no_lock(data_dir / FILE, error) from error
        else:
            return


def _holder(descriptor: int) -> int | None:
    """Return the process that took the lock; None while it has not written its number."""
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else None


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
