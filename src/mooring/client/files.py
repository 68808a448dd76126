"""Files with secrets and files that must not be half there.

Rules kept here: a file is written whole or not at all (temporary file in the same directory, fsync, rename, fsync of the
directory), it is 0600 from its first byte, and reading has a limit. Errors name the path and what to do, never the content.
A writer holds a lock on its temporary file; one whose lock nobody holds was left by a killed writer, maybe with half a key in
it, and the next write to that directory removes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path

from mooring.errors import ConfigError

MAX_READ = 4 << 20
"""No key, certificate bundle or kubeconfig comes near 4 MiB; a device file or a mistake does."""
TEMPORARY = ".mooring-tmp"
"""Ends the names of temporary files; nobody else's files are called so."""


def write_atomic(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace `path` by `data`; after a crash it holds either the old or the new content. Raises ConfigError."""
    try:
        _remove_abandoned(path.parent)
        temporary, descriptor = _temporary(path, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                temporary.replace(path)  # still locked: nobody takes it for abandoned
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        sync_directory(path.parent)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {_why(error)}") from error


def _temporary(path: Path, mode: int) -> tuple[Path, int]:
    """A new file beside `path`, locked."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}{TEMPORARY}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with suppress(OSError):  # a file system without locks: then nobody removes anything either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return temporary, descriptor
        os.close(descriptor)  # taken for abandoned in the instant before it was locked


def _remove_abandoned(directory: Path) -> None:
    for found in directory.glob(f".*{TEMPORARY}"):
        with suppress(OSError):  # written just now, removed by somebody else, or not ours: it stays
            descriptor = os.open(found, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found.unlink()
            finally:
                os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Make renames in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_limited(path: Path, limit: int = MAX_READ) -> bytes:
    """The content of `path`. Raises ConfigError when it cannot be read or is larger than `limit`."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {_why(error)}") from error
    if len(data) > limit:
        raise ConfigError(f"{path} is larger than {limit} bytes; is it the right file?")
    return data


def make_directory(path: Path, mode: int = 0o700) -> None:
    """Create `path` and its parents, durably; an existing directory is left as it is. Raises ConfigError."""
    try:
        missing = [one for one in (path, *path.parents) if not one.is_dir()]
        if missing:
            path.mkdir(mode=mode, parents=True, exist_ok=True)
        for made in missing:
            sync_directory(made.parent)
    except OSError as error:
        raise ConfigError(f"the directory {path} cannot be made: {_why(error)}") from error


def _why(error: OSError) -> str:
    text = (error.strerror or str(error)).lower()
    hints = {
        errno.EACCES: "give this user access or choose another directory",
        errno.EPERM: "give this user access or choose another directory",
        errno.EROFS: "the file system is mounted read-only; choose another directory",
        errno.ENOSPC: "free some space and run the command again",
        errno.EDQUOT: "free some space and run the command again",
        errno.ENOENT: "check the path",
        errno.EISDIR: "name a file, not a directory",
        errno.EEXIST: "something else has that name; move it away or choose another directory",
        errno.ENOTDIR: "a part of the path is a file; move it away or choose another directory",
    }
    hint = hints.get(error.errno or 0)
    return f"{text}; {hint}" if hint else text
