"""Files of a server: the data directory, files that are read again when they change, and those of the CA."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from mooring.client.files import MAX_READ, ROOT, exposure, make_directory, read_limited
from mooring.clock import Clock
from mooring.errors import ConfigError, MooringError
from mooring.observed import Observed
from mooring.pki.keys import load_private_key
from mooring.pki.x509.bundles import certificates_among
from mooring.pki.x509.clusterca import CaState
from mooring.trust.sharedkeys.keyset import CA, CA_KEY, CROSS_SIGNED, DISTRUSTED, RETIRED

# Permissions of files that other users of this machine may read or change: refused, or reported by a warning, at start.
#
# Rules kept here:
# * The server's own `pki/` is refused: a user who changes a file there can replace the CA, and one who reads a key can sign with
#   it.
# * A mode that is too wide below a directory that is closed to other users, as the server creates its own, is only warned of.
# * Files that an operator named, and kubeconfigs that the server wrote, are used. A warning names the command that corrects them.
#   Their group may read them, because keys are shared with services in this way.

log = logging.getLogger("mooring.controlplane")


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
    """Warn when other users may change the file, or any user may read it. Reading a directory reports that it is one."""
    if not path.is_dir() and (found := exposure(path, stat.S_IROTH)):
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
    # A named pipe holds no process number.
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
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
LOCK_LOOK_SECONDS = 0.1


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
        # The lock is held until the last worker has closed it, too.
        os.close(descriptor)


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
            pause(LOCK_LOOK_SECONDS)
            left -= LOCK_LOOK_SECONDS
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


# Files that may change while the server runs: bundles of CAs, tokens, passwords, configurations.
#
# Rules kept here:
# * Every second the identity, the size and the modification time of each file are compared with those of the last reading. A
#   changed file is read one look later, if it has not changed again. One that a program writes again every second is read every
#   ten looks, as it is then.
# * New content is used whole or not at all. When the file cannot be read or its content is wrong, the last good content stays in
#   force, and the log says so once for each change. Such a file is read again every ten looks without a change of it: the read
#   may have failed for want of a descriptor, or the content for another file.
# * A changed file is read in a thread, and prepared there where that takes long, so that no request waits. It comes into force on
#   the event loop, between two requests.
# * At start there is no last good content: a file that cannot be used stops the start.
# * Editors replace files (rename) and Kubernetes swaps symbolic links (`..data`): both change the identity of the file.

reload_log = logging.getLogger("mooring.reload")

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
            # Read one look after its last change: a file that is written in place is not read half-written.
            before, file.seen = file.seen, _states(file.paths)
            file.moving = file.moving + 1 if file.seen != before else 0
            if file.moving % RETRY_LOOKS:
                continue
            if file.seen != file.read_at:
                # Before the reading: a change during it is another one.
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
            reload_log.error(
                "%s was changed and is not used, the last good content stays in force: %s", file.paths[0], error
            )
        file.problem, file.looks = str(error), RETRY_LOOKS
    else:
        file.problem = ""
        reload_log.info("%s was changed and has been read", file.paths[0])


def _states(files: Sequence[Path]) -> tuple[_State, ...]:
    return tuple(map(_state, files))


def _state(file: Path) -> _State:
    """Return numbers that change with the content of the file; None when there is no file."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


# Files of the cluster's CA in `pki/` of the data directory, read as one state.
#
# Rules kept here: the bundle `ca.crt` and the key `ca.key` are used together or not at all. A bundle without the certificate of
# the key is half of a change, and an error.

Loaded = TypeVar("Loaded")


def ca_files(pki: Path) -> tuple[Path, ...]:
    """Return the files from which the state of the CA is read."""
    return tuple(pki / name for name in (CA, CA_KEY, CROSS_SIGNED, RETIRED, DISTRUSTED))


def read_ca(pki: Path) -> CaState:
    """Read the CA of a data directory. Raises ConfigError."""
    certificate_path = pki / CA
    bundle, key = load(certificate_path, certificates_among), load(pki / CA_KEY, load_private_key)
    others = [
        load(path, certificates_among) if path.exists() else ()
        for path in (pki / CROSS_SIGNED, pki / RETIRED, pki / DISTRUSTED)
    ]
    return load(certificate_path, lambda _: CaState.of_files(bundle, key, *others))


def load(path: Path, parse: Callable[[bytes], Loaded]) -> Loaded:
    """Read a file of the data directory. Raises ConfigError."""
    data = read_limited(path)
    try:
        return parse(data)
    except ConfigError:
        raise
    except MooringError as error:
        # No client keeps a copy of it.
        replaceable = path.name.startswith("apiserver.")
        remedy = "remove it, and it is made again" if replaceable else "restore it from a backup"
        raise ConfigError(f"{path}: {error}; {remedy}") from error
