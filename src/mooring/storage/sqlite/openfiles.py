"""Files of an open database, compared with what their paths name now.

Rules kept here: a file that was deleted, replaced or cut while it is open goes on being written, and all of that is lost with the
last process that has it open. Device and inode are those of the open file, because SQLite keeps it open. Nothing is opened here:
closing a second descriptor would drop SQLite's locks (POSIX advisory locks).
"""

from __future__ import annotations

from pathlib import Path


class OpenFiles:
    """The database, its write-ahead log and its shared memory, as they are when this is made."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when a file is missing. The database is open, and was read."""
        names = (path, Path(f"{path}-wal"), Path(f"{path}-shm"))
        self._identities = {name: _identity(name) for name in names}
        self._database = path
        self._size = path.stat().st_size

    def gone(self) -> str:
        """Return the path of a file that was deleted, replaced or cut, "" while all are in their places.

        The database never becomes smaller: it is not vacuumed.
        """
        if self._is_cut():
            return str(self._database)
        for name, identity in self._identities.items():
            try:
                if _identity(name) != identity:
                    return str(name)
            except FileNotFoundError:
                return str(name)
            except OSError:  # a directory that cannot be read for a moment says nothing about the file
                continue
        return ""

    def _is_cut(self) -> bool:
        try:
            size = self._database.stat().st_size
        except OSError:  # `gone` looks at its identity
            return False
        self._size = max(self._size, size)
        return size < self._size


def _identity(name: Path) -> tuple[int, int]:
    status = name.stat()
    return status.st_dev, status.st_ino
