"""Files that other users of this machine may read or change, told or refused when the server starts.

Rules kept here:
* The server's own `pki/` is refused: whoever changes a file there becomes the CA, and whoever reads a key may sign as it.
* A mode that is too wide behind a directory closed to others, as the server makes its own, gives nobody access: it is warned of.
* Files that an operator named, and kubeconfigs that the server made, are used, and a warning says which command mends them.
  Their group may read them: that is how keys are shared with a service.
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
    _judge(pki, outer_closed, 0)
    inner_closed = outer_closed or _is_closed(pki)
    for path in sorted(pki.iterdir()):
        _judge(path, inner_closed, stat.S_IRGRP | stat.S_IROTH if path.suffix == ".key" else 0)


def _judge(path: Path, closed: bool, readers: int) -> None:
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
