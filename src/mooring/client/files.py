"""Files: atomic writes, bounded reads, and protection from files that other users place.

Rules kept here:
* A file is written whole or not at all: temporary file in the same directory, fsync, rename, fsync of the directory. Its mode is
  0600 from the first byte. Reads have a limit. Errors name the path and the remedy, never the content.
* A writer locks its temporary file. The next write to the directory removes one that a killed writer left.
* Other users can place files in a directory that everybody may write to, such as `/tmp`. A named pipe or a device is refused
  without waiting for it, and a file of another user there is not read. Descriptors that the program was given (`/dev/stdin`,
  `/dev/fd/3`) are read as they are.
* Nothing is written to a directory that everybody may write to and that is not sticky, because others could replace it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import secrets
import shlex
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from mooring.errors import ConfigError

MAX_READ = 4 << 20
"""Bytes: no key, certificate bundle or kubeconfig comes near 4 MiB."""
SPARE = 16 << 10
"""Bytes that a disk must have left before a write: a key, a chain of certificates or the entries of a login, and its record."""
ROOT = 0
"""User id of root, which can change every file."""
_HANDED_OVER = (Path("/dev/fd"), Path("/proc/self/fd"))
TEMPORARY = ".mooring-tmp"
"""Ending of the names of temporary files."""


def home() -> Path:
    """Return the home directory of this user: / for a user without an entry and without HOME, as container runtimes have it."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def write_atomic(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace the content of `path` by `data`. After a crash it holds the old or the new content. Raises ConfigError."""
    with atomic_file(path, mode) as file:
        file.write(data)


def replace_content(path: Path, data: bytes) -> None:
    """Replace the content of `path` as `write_atomic` does, or in place where it is a mount point. Raises ConfigError.

    For files that other programs write in place, too, and that containers mount one by one, such as a kubeconfig.
    """
    if not _is_mount_point(path):
        write_atomic(path, data)
        return
    try:
        # No rename replaces a mount point, so that a crash while the old content is overwritten leaves a part of each. A full disk
        # does not: the new end is written first.
        size = path.stat().st_size
        try:
            with path.open("r+b") as file:
                file.seek(size)
                file.write(data[size:])
        except OSError:
            os.truncate(path, size)
            raise
        with path.open("r+b") as file:
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {os_reason(error)}") from error


def check_writable(path: Path, *, in_place: bool = False) -> None:
    """Raise ConfigError unless a file can take the place of `path`. Its directory exists, and `path` is left as it is.

    `in_place`: it is written by `replace_content`. A disk can still become full before the write.
    """
    _refuse_other_than_file(path)
    try:
        _refuse_open_directory(path.parent)
        exists, is_mounted = os.path.lexists(path), _is_mount_point(path)
        if is_mounted and not in_place:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        if exists:
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
            except OSError as error:
                # A rename needs no right on the file that it replaces, and is refused for an immutable one.
                if is_mounted or error.errno == errno.EPERM:
                    raise
        if is_mounted:
            disk = os.statvfs(path)
            if disk.f_blocks and disk.f_bavail * disk.f_frsize < SPARE:  # some file systems do not count blocks
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return
        # The old file stays until the new one is complete.
        replaced = min(path.lstat().st_size, MAX_READ) if exists else 0
        temporary, descriptor = _create_temporary(path, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            # Removed before it is filled: a process that is killed here leaves nothing.
            temporary.unlink()
            file.write(bytes(replaced + SPARE))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {os_reason(error)}") from error


def _is_mount_point(path: Path) -> bool:
    """Return True for a file on which another is mounted, as containers have it. Its device may be that of its directory."""
    try:
        return _mount_id(str(path)) != _mount_id(f"{path.parent}/.")
    except OSError:  # the file does not exist, or there is no /proc
        return False


def _mount_id(path: str) -> str:
    """Return the line of proc_pid_fdinfo(5) with the mount that `path` is on."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    finally:
        os.close(descriptor)
    return next((line for line in lines if line.startswith("mnt_id:")), "")


@contextmanager
def atomic_file(path: Path, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of `path` at the end of the block; after an error in it, `path` is as before.

    Its descriptor can be read, too. Raises ConfigError when the file cannot be written.
    """
    _refuse_other_than_file(path)
    try:
        # Before a temporary file is made: in such a directory another user could replace it before the rename.
        _refuse_open_directory(path.parent)
        # A temporary file without a lock was left by a killed writer, and may hold half a key.
        _remove_abandoned(path.parent)
        temporary, descriptor = _create_temporary(path, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                # The content is on the disk before the name: after a crash the name leads to the old content or to
                # all of the new.
                os.fsync(file.fileno())
                # Still locked, so that no other writer removes it.
                temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        # Without it a crash could undo the rename after the caller has gone on.
        sync_directory(path.parent)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {os_reason(error)}") from error


def _refuse_other_than_file(path: Path) -> None:
    """Raise ConfigError for a directory, and for a device, pipe or socket: a file would take its place for every program."""
    with suppress(OSError):  # one that does not exist; another reason is found by the write
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ConfigError(f"{path} cannot be written: it is a directory; name a file")
        if not stat.S_ISREG(mode) or path.parent.resolve() == Path("/dev"):  # a link there leads to an open file
            raise ConfigError(f"{path} cannot be written: it is a device, a pipe or a socket; name a file")


def _create_temporary(path: Path, mode: int) -> tuple[Path, int]:
    """Create a locked file beside `path`. Return its path and descriptor."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}{TEMPORARY}")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with suppress(OSError):  # on a file system without locks no writer removes files
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return temporary, descriptor
        # Another writer removed it before it was locked.
        os.close(descriptor)


def _remove_abandoned(directory: Path) -> None:
    for found in directory.glob(f".*{TEMPORARY}"):
        with suppress(OSError):  # locked, removed by another process, or of another user
            descriptor = os.open(found, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                # The open file, and not its name, which another user may change meanwhile.
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


def real_path(path: Path) -> Path:
    """Return `path` without symbolic links, whether or not it exists. Raises ConfigError for links that lead to themselves."""
    try:
        with suppress(FileNotFoundError):
            path.stat()
        return path.resolve()
    except OSError as error:
        raise ConfigError(f"{path} cannot be used: {os_reason(error)}") from error


def read_limited(path: Path, limit: int = MAX_READ, *, handed_over: bool = True) -> bytes:
    """Return the content of `path`. Raises ConfigError when it cannot be read or is larger than `limit` bytes.

    Without `handed_over` no descriptor of the program is read: of a path that another file names, and no person.
    """
    if not handed_over and _is_handed_over(path):
        raise ConfigError(f"{path} is not a regular file")
    try:
        with os.fdopen(_open_file(path), "rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {os_reason(error)}") from error
    if len(data) > limit:
        raise ConfigError(f"{path} is larger than {limit} bytes; is it the right file?")
    return data


@contextmanager
def memory_file(data: bytes) -> Iterator[str]:
    """Yield the path of a file in memory, for what OpenSSL reads from paths alone. Raises ConfigError without /proc."""
    try:
        descriptor = os.memfd_create("openssl", os.MFD_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"no file in memory can be made: {os_reason(error)}") from error
    path = f"/proc/self/fd/{descriptor}"
    try:
        with os.fdopen(os.dup(descriptor), "wb") as memory:
            memory.write(data)
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            reason = (error.strerror or "").lower()
            raise ConfigError(
                f"certificates are handed to OpenSSL through /proc/self/fd, which cannot be read ({reason}): mount /proc, and "
                "allow this program to read it"
            ) from error
        yield path
    finally:
        os.close(descriptor)


def check_memory_files() -> None:
    """Raise ConfigError when `memory_file` cannot work, so that no client certificate could be presented."""
    with memory_file(b""):
        return


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file of any size for reading. Raises ConfigError when it cannot be read."""
    try:
        with os.fdopen(_open_file(path), "rb") as file:
            yield file
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {os_reason(error)}") from error


def _open_file(path: Path) -> int:
    """Open a regular file, or a descriptor that the program was given, for reading. Raises OSError, ConfigError."""
    if _is_handed_over(path):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    # Another user may have placed a named pipe or a terminal, on which an open would wait.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        # Of the open file, so that no other user can replace it between the check and the read.
        check_owner(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_handed_over(path: Path) -> bool:
    return str(path) == "/dev/stdin" or path.parent in _HANDED_OVER


def check_owner(path: Path, found: os.stat_result) -> None:
    """Raise an error unless `found`, at `path`, is a regular file that no other user can have placed there."""
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path} is not a regular file; name one, or /dev/stdin for standard input")
    # In a directory such as /tmp another user can place a file under any name.
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


def refuse_other_writers(path: Path, consequence: str, *, named: bool) -> None:
    """Raise ConfigError for a file that other users may write or replace, with this consequence, or own without being named."""
    try:
        found = path.stat()
    except OSError:
        return  # reading the file reports the reason
    if not stat.S_ISREG(found.st_mode):
        return
    if found.st_mode & stat.S_IWOTH:
        raise ConfigError(f"{path} can be written by every user, who {consequence}; run chmod go-w on it")
    for directory in path.resolve().parents:
        mode = directory.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise ConfigError(f"{path} can be replaced by every user, who {consequence}; run chmod o-w on {directory}")
    if not named and found.st_uid not in (os.geteuid(), ROOT):
        raise ConfigError(f"{path} belongs to another user; give it to root with chown, or name it with --config")


def exposure(path: Path, readers: int = stat.S_IRGRP | stat.S_IROTH) -> str:
    """Return how other users can change or read `path`, with the command that corrects it; "" when they cannot.

    `readers` are the mode bits that let others read it. A group may read a file of root, because this process may need that. A
    path that does not exist is not exposed.
    """
    try:
        found = path.stat()
    except OSError:
        return ""
    quoted, mode = shlex.quote(str(path)), "700" if stat.S_ISDIR(found.st_mode) else "600"
    if found.st_uid not in (os.geteuid(), ROOT):
        return f"{path} belongs to another user (uid {found.st_uid}): run chown {os.geteuid()} {quoted}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} can be changed by other users of this machine: run chmod {mode} {quoted}"
    if found.st_uid != os.geteuid():
        readers &= ~stat.S_IRGRP
    if found.st_mode & readers:
        return f"{path} can be read by other users of this machine: run chmod {mode} {quoted}"
    return ""


def make_directory(path: Path, mode: int = 0o700) -> None:
    """Create `path` and its missing parents with `mode`, durably. An existing directory is not changed. Raises ConfigError."""
    try:
        missing = [] if path.is_dir() else [path, *(one for one in path.parents if not one.exists())]
        # One by one: pathlib gives parents that it makes the default mode.
        for one in reversed(missing):
            one.mkdir(mode=mode, exist_ok=True)
        for made in missing:
            sync_directory(made.parent)
    except OSError as error:
        raise ConfigError(f"the directory {path} cannot be made: {os_reason(error)}") from error


_HINTS: Mapping[int, str] = MappingProxyType(
    {
        errno.EACCES: "give this user access or choose another directory",
        errno.EPERM: "give this user access or choose another directory",
        errno.EROFS: "the file system is mounted read-only; choose another directory",
        errno.ENOSPC: "free some space and run the command again",
        errno.EDQUOT: "free some space and run the command again",
        errno.EIO: "the disk cannot be read or written: check it",
        errno.EMFILE: "raise the limit of open files of this process (ulimit -n)",
        errno.ENFILE: "raise the limit of open files of this machine (fs.file-max)",
        errno.ENOENT: "check the path",
        errno.ELOOP: "check the path: a symbolic link leads to itself",
        errno.ENAMETOOLONG: "check the path",
        errno.EISDIR: "name a file, not a directory",
        errno.EBUSY: "something is mounted there and cannot be replaced; mount its directory instead, or choose another path",
        errno.EEXIST: "something else has that name; move it away or choose another directory",
        errno.ENOTDIR: "a part of the path is a file; move it away or choose another directory",
        errno.ENOTEMPTY: "something else is in that directory; move it away or choose another directory",
    }
)
"""Advice about an error of the file system, by its number."""


def os_reason(error: OSError) -> str:
    """Return the reason of an error of the file system, and what to do about it."""
    text = (error.strerror or str(error)).lower()
    hint = _closed_directory(error) or _HINTS.get(error.errno or 0)
    return f"{text}; {hint}" if hint else text


def _closed_directory(error: OSError) -> str:
    """Return the advice about a directory on the way to a file that this user may not enter; "" without one."""
    if error.errno != errno.EACCES or not isinstance(error.filename, str | bytes):
        return ""
    path = Path(os.fsdecode(error.filename)).absolute()
    for directory in reversed(path.parents):
        if not os.access(directory, os.X_OK):
            try:
                uid = directory.stat().st_uid
            except OSError:  # it was removed meanwhile
                return ""
            try:
                owner = f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
            except KeyError:
                owner = f"uid {uid}"
            return (
                f"the directory {directory} belongs to {owner}: run the command as that user, with sudo for example, or name "
                "a file or directory of your own, such as a kubeconfig with --kubeconfig"
            )
    return ""


def file_problem(error: OSError) -> str:
    """Return the message about an error of the file system that no code has explained; "" for another error, such as a socket's."""
    if error.filename is None:
        return os_reason(error) if error.errno in _HINTS else ""
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else f"descriptor {error.filename}"
    return f"{name}: {os_reason(error)}"
