"""Open the lock files of a data directory, and explain to the operator why one cannot be opened."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from mooring.errors import ConfigError

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
ROOT = 0
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
