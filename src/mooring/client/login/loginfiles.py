"""Login files: one record and one lock for each login, in the user's cache directory.

Rules kept here (XDG base directories):
* The directory is $XDG_CACHE_HOME/mooring/logins, else ~/.cache/mooring/logins, with mode 0700. Files have mode 0600 and are
  written whole.
* A renewal holds the lock of its login and reads the record again first, so that twenty commands at once make one renewal.
* Files of another user, and a directory that others may write to, are refused.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from mooring.client.files import home, make_directory, read_limited, write_atomic
from mooring.errors import ConfigError
from mooring.trust import loginrecord
from mooring.trust.loginrecord import Login, LoginRecordError

LOCK_PAUSE = 0.05
"""Seconds between two tries for the lock of a login."""
LOCK_TRIES = 200
"""Ten seconds: a renewal takes one, and programs fail rather than stand still for one that hangs."""
MAX_RECORD = 256 << 10
"""Bytes: a record has 5 kB; with a bundle of CAs and a token of many groups it has 40 kB."""


def directory(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory of this user's logins."""
    base = (os.environ if environ is None else environ).get("XDG_CACHE_HOME", "")
    # The specification says that relative paths are ignored.
    root = Path(base) if base.startswith("/") else home() / ".cache"
    return root / "mooring" / "logins"


class LostLoginError(ConfigError):
    """There is no record of a login, or it is damaged: only a person can make the login again."""


class LoginFiles:
    """Logins of one user. Raises ConfigError for a file that cannot be read or written."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def path(self, login_id: str) -> Path:
        return self._place / f"{loginrecord.check_id(login_id)}.json"

    def read(self, login_id: str) -> Login | None:
        """Return the login with this id; None when there is none. Raises LoginRecordError for a record that is damaged."""
        path = self.path(login_id)
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
        above = self._place.stat()
        # A planted record would send credentials to another server.
        if found.st_uid != os.geteuid() or above.st_uid != os.geteuid() or stat.S_IMODE(above.st_mode) & 0o022:
            raise ConfigError(f"{path} may have been written by another user; remove {self._place} and log in again")
        if found.st_size > MAX_RECORD:
            raise LoginRecordError(f"{path} has more than {MAX_RECORD} bytes")
        login = loginrecord.load(read_limited(path, MAX_RECORD))
        if login.id != login_id:
            raise LoginRecordError(f"{path} is the record of another login")
        return login

    def existing(self, login_id: str) -> Login:
        """Return the login with this id. Raises LostLoginError."""
        path = self.path(login_id)
        try:
            login = self.read(login_id)
        except LoginRecordError:
            raise LostLoginError(f"the record of the login is damaged ({path})") from None
        if login is None:
            raise LostLoginError("there is no such login on this machine any more")
        return login

    def readable(self, login_id: str) -> Login | None:
        """Return the login with this id; None when there is none, or its record cannot be read."""
        try:
            return self.read(login_id)
        except ConfigError:
            return None

    def every(self) -> list[str]:
        """Return the ids of all logins."""
        return sorted(path.stem for path in self._place.glob("*.json"))

    def write(self, login: Login) -> None:
        """Write `login`, in place of the record with its id."""
        make_directory(self._place)
        write_atomic(self.path(login.id), loginrecord.dump(login))

    def remove(self, login_id: str) -> bool:
        """Remove a login and return True; False when there is none. Waits for a renewal under way, so that it stays removed."""
        path = self.path(login_id)
        if not path.exists():
            return False
        # A renewal under way would write the record again.
        with self.locked(login_id):
            try:
                path.unlink(missing_ok=True)
                path.with_suffix(".lock").unlink(missing_ok=True)
            except OSError as error:
                raise ConfigError(f"{path} cannot be removed: {(error.strerror or str(error)).lower()}") from None
        return True

    @contextmanager
    def locked(self, login_id: str) -> Iterator[None]:
        """Hold the lock of a login. Waits for a renewal under way. Raises ConfigError for one that does not end."""
        make_directory(self._place)
        path = self.path(login_id).with_suffix(".lock")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ConfigError(f"{path} cannot be locked: {(error.strerror or str(error)).lower()}") from None
        try:
            for _ in range(LOCK_TRIES):
                with suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(LOCK_PAUSE)
            else:
                seconds = LOCK_TRIES * LOCK_PAUSE
                raise ConfigError(
                    f"another command has been renewing this login for {seconds:.0f} s: try again, or end it (fuser {path})"
                )
            yield
        finally:
            os.close(descriptor)
