"""Where logins are kept: one file each, and a lock beside it.

Rules kept here (XDG base directories):
* Under $XDG_CACHE_HOME/mooring/logins, else ~/.cache/mooring/logins, for the user alone: directory 0700, files 0600, written
  whole.
* Who renews holds the lock of that login, and looks again first: twenty commands at once make one renewal.
* Files of somebody else's, and a directory that others may write to, are refused: a planted record would send credentials
  elsewhere.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from mooring.client.files import make_directory, read_limited, write_atomic
from mooring.errors import ConfigError
from mooring.trust.login import loginrecord
from mooring.trust.login.loginrecord import Login

MAX_RECORD = 256 << 10
"""A record has 5 kB; one with a bundle of CAs, and a token of many groups, 40."""


def directory(environ: Mapping[str, str] | None = None) -> Path:
    """Where the logins of this user are."""
    base = (os.environ if environ is None else environ).get("XDG_CACHE_HOME", "")
    # the specification has relative paths ignored
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "mooring" / "logins"


class Logins:
    """The logins of one user. `ConfigError` is raised for what cannot be read or written."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def path(self, login_id: str) -> Path:
        return self._place / f"{loginrecord.check_id(login_id)}.json"

    def read(self, login_id: str) -> Login | None:
        """The login with this id, if there is one."""
        path = self.path(login_id)
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
        above = self._place.stat()
        if found.st_uid != os.geteuid() or above.st_uid != os.geteuid() or stat.S_IMODE(above.st_mode) & 0o022:
            raise ConfigError(f"{path} may have been written by somebody else; remove {self._place} and log in again")
        return loginrecord.load(read_limited(path, MAX_RECORD))

    def every(self) -> list[str]:
        """The ids of all logins."""
        return sorted(path.stem for path in self._place.glob("*.json"))

    def write(self, login: Login) -> None:
        """Keep `login` in the place of what was there under its id."""
        make_directory(self._place)
        write_atomic(self.path(login.id), loginrecord.dump(login))

    def remove(self, login_id: str) -> bool:
        """Forget a login; whether there was one. Waits for who renews it: a renewal does not bring it back."""
        path = self.path(login_id)
        if not path.exists():
            return False
        with self.locked(login_id), suppress(FileNotFoundError):
            path.unlink()
            path.with_suffix(".lock").unlink()
        return True

    @contextmanager
    def locked(self, login_id: str) -> Iterator[None]:
        """Alone with this login: nobody else renews it meanwhile. Waits for who does."""
        make_directory(self._place)
        path = self.path(login_id).with_suffix(".lock")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ConfigError(f"{path} cannot be locked: {(error.strerror or str(error)).lower()}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
