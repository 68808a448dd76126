"""Files with secrets and files that must not be half there.

Rules kept here: a file is written whole or not at all (temporary file in the same directory, fsync, rename, fsync of the
directory), it is 0600 from its first byte, and reading has a limit. Errors name the path and what to do, never the content.
A writer holds a lock on its temporary file; one whose lock nobody holds was left by a killed writer, maybe with half a key in
it, and the next write to that directory removes it.

Others may place files where everybody may write (`/tmp`). No open waits for them: a named pipe or a device is no file, and what
another user put there is not read. Descriptors that the program was given (`/dev/stdin`, `/dev/fd/3`) are read as they are.
Nothing is written where others could replace it: where everybody may write and the directory is not sticky.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shlex
import stat
from contextlib import suppress
from pathlib import Path

from mooring.errors import ConfigError

MAX_READ = 4 << 20
"""No key, certificate bundle or kubeconfig comes near 4 MiB; a device file or a mistake does."""
ROOT = 0
"""The user who can change every file anyway."""
_HANDED_OVER = (Path("/dev/fd"), Path("/proc/self/fd"))
TEMPORARY = ".mooring-tmp"
"""Ends the names of temporary files; nobody else's files are called so."""


def write_atomic(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace `path` by `data`; after a crash it holds either the old or the new content. Raises ConfigError."""
    try:
        _refuse_open_directory(path.parent)
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
            descriptor = os.open(found, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                    continue
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
        with os.fdopen(_open_file(path), "rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {_why(error)}") from error
    if len(data) > limit:
        raise ConfigError(f"{path} is larger than {limit} bytes; is it the right file?")
    return data


def _open_file(path: Path) -> int:
    """Open a regular file, or a descriptor handed over, for reading. Raises OSError, ConfigError."""
    if str(path) == "/dev/stdin" or path.parent in _HANDED_OVER:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        check_placed(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_placed(path: Path, found: os.stat_result) -> None:
    """Raise an error unless `found`, at `path`, is a regular file that no other user can have placed there."""
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path} is no regular file; name one, or /dev/stdin for standard input")
    if found.st_uid not in (os.geteuid(), ROOT) and path.parent.stat().st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"{path} belongs to another user (uid {found.st_uid}) and lies where everybody may write; if you trust it, copy it "
            "to a directory of your own"
        )


def _refuse_open_directory(directory: Path) -> None:
    mode = directory.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise ConfigError(
            f"everybody may replace files in {directory}; run chmod o-w {shlex.quote(str(directory))}, or choose another directory"
        )


def exposure(path: Path, readers: int = stat.S_IRGRP | stat.S_IROTH) -> str:
    """Return how other users may change or read `path`, with the command that mends it; "" when they may not, or it is not there.

    `readers`: the bits of the mode that let too many read it. What root owns may be read by a group: this process may need that.
    """
    try:
        found = path.stat()
    except OSError:
        return ""
    shown, narrow = shlex.quote(str(path)), "700" if stat.S_ISDIR(found.st_mode) else "600"
    if found.st_uid not in (os.geteuid(), ROOT):
        return f"{path} belongs to another user (uid {found.st_uid}): run chown {os.geteuid()} {shown}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} can be changed by other users of this machine: run chmod {narrow} {shown}"
    if found.st_uid != os.geteuid():
        readers &= ~stat.S_IRGRP
    if found.st_mode & readers:
        return f"{path} can be read by other users of this machine: run chmod {narrow} {shown}"
    return ""


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
