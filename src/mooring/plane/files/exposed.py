"""Permissions of files that other users of this machine may read or change: refused, or reported by a warning, at start.

Rules kept here:
* The server's own `pki/` is refused: a user who changes a file there can replace the CA, and one who reads a key can sign with it.
* A mode that is too wide below a directory that is closed to other users, as the server creates its own, is only warned of.
* Files that an operator named, and kubeconfigs that the server wrote, are used. A warning names the command that corrects them.
  Their group may read them, because keys are shared with services in this way.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from mooring.client.files import ROOT, exposure
from mooring.errors import ConfigError

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
