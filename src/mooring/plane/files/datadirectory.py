"""The data directory: its lock, its lock files, and files in it that other users may read or change."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mooring.client.files import ROOT, exposure, make_directory
from mooring.errors import ConfigError

# Permissions of files that other users of this machine may read or change: refused, or reported by a warning, at start.
#
# Rules kept here:
# * The server's own `pki/` is refused: a user who changes a file there can replace the CA, and one who reads a key can sign with
#   it.
# * A mode that is too wide below a directory that is closed to other users, as the server creates its own, is only warned of.
# * Files that an operator named, and kubeconfigs that the server wrote, are used. A warning names the command that corrects them.
#   Their group may read them, because keys are shared with services in this way.

log = logging.getLogger("mooring.plane")


def refuse_exposed(pki: Path) -> None:
    """Raise ConfigError when other users own or may change the directory of keys or a file in it, or read a private key."""
    outer_closed = _is_closed(pki.parent)
    _refuse_or_warn(pki, outer_closed, 0)
    inner_closed = outer_closed or _is_closed(pki)
    for path in sorted(pki.iterdir()):
        _refuse_or_warn(path, inner_closed, stat.S_IRGRP | stat.S_IROTH if path.suffix == ".key" else 0)


def _refuse_or_warn(path: Path, closed: bool, readers: int) -> None:
    found = exposure(path, readers)
    if not found:
        return
    if closed and path.stat().st_uid in (os.geteuid(), ROOT):
        log.warning("%s", found)
        return
    raise ConfigError(f"{found}; if others may have used it, make new keys" if readers else found)


def _is_closed(directory: Path) -> bool:
    """Return whether other users cannot pass through the directory."""
    found = directory.stat()
    return found.st_uid in (os.geteuid(), ROOT) and not found.st_mode & (stat.S_IXGRP | stat.S_IXOTH)


def warn_if_exposed(path: Path) -> None:
    """Warn when other users may change the file, or any user may read it."""
    if found := exposure(path, stat.S_IROTH):
        log.warning("%s", found)


# Open the lock files of a data directory, and explain to the operator why one cannot be opened.

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_IN_THE_WAY = "something else has that name; move it away"
_NO_DESCRIPTOR = "raise the limit of open files (ulimit -n, or LimitNOFILE of the unit)"
_NO_LOCKS = "use a file system with locks (flock), a local one for instance, or mount this one with them"
_REMEDIES = {
    errno.EISDIR: _IN_THE_WAY,
    errno.ELOOP: _IN_THE_WAY,
    errno.ENXIO: _IN_THE_WAY,
    errno.EROFS: "mount the file system writable, or choose another directory",
    errno.EMFILE: _NO_DESCRIPTOR,
    errno.ENFILE: _NO_DESCRIPTOR,
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
}


def no_lock(path: Path, error: OSError) -> ConfigError:
    """Return the error for a lock file that is open, and that the file system does not lock."""
    reason = (error.strerror or str(error)).lower()
    return ConfigError(f"the lock file {path} cannot be locked: {reason}; {_NO_LOCKS}")


def open_lock(path: Path) -> int:
    """Return a descriptor of a lock file, which is created when it is missing. Raises ConfigError."""
    try:
        descriptor = os.open(path, _FLAGS, 0o600)
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "give this user access, or choose another directory")
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"the lock file {path} cannot be opened: {reason}; {remedy}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # a named pipe holds no process number
        os.close(descriptor)
        raise ConfigError(f"the lock file {path} cannot be opened: not a regular file; {_IN_THE_WAY}")
    return descriptor


def refuse_other_writers(data_dir: Path) -> None:
    """Raise ConfigError for a directory in which another user may put files: the CA in it could be that user's."""
    found = data_dir.stat()
    if found.st_uid not in (os.geteuid(), ROOT):
        raise ConfigError(f"{data_dir} belongs to another user; give it to this one with chown, or choose another")
    if found.st_mode & stat.S_IWOTH:
        raise ConfigError(f"{data_dir} can be written by every user; run chmod 700 on it, or choose another directory")


# Lock of a data directory: one server, or one command that changes what a server has open.
#
# Rules kept here:
# * It is another lock than that of single writes (`keystore.exclusive`): it is held for the life of a server, by the parent and
#   each worker, and no process waits for it. A second server would publish its own address and rewrite the kubeconfigs.
# * After `kill -9` of a parent its workers drain and hold the lock until they have ended. The process that the file names is then
#   gone, and a start waits for the workers; a service manager starts a server again within a second.

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
