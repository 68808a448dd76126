"""Files of one certificate and its key, as kubelet's file store keeps them (docs/protocol/kubelet-certificates.md#files).

    <prefix>-<time>.pem      certificate blocks, then the key; one file for each certificate
    <prefix>-current.pem     absolute symlink to the newest of them

Rules kept here:
* The link is replaced by renaming `<prefix>-updated.pem` over it, so that there is always a current certificate. A link left by a
  crash is renamed when it points to a usable pair, and removed otherwise. A process that reads the pair cannot tell such a link
  from one that another process is about to rename, so that either may find that the other has renamed it.
* Each file has mode 0600, is written whole or not at all, and is durable before the link leads to it.
* Old files are removed after a renewal. kubelet keeps them all.
* A pair that the server rejects is set aside for a kubelet, which requests no certificate while one that is not expired is current.
  The key stays on disk, for a person to look at.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from mooring.agent import disk
from mooring.client.files import read_limited
from mooring.errors import ConfigError, MooringError
from mooring.pki.keys import (
    UNREADABLE,
    PrivateKey,
    accepted_public_key,
    load_private_key,
    private_key_pem,
    public_key_der,
)
from mooring.pki.x509 import bundles
from mooring.pki.x509.certificate import Certificate
from mooring.secret import Secret

CLIENT = "kubelet-client"
SERVING = "kubelet-server"
KEPT_FILES = 3
"""Files that `prune` leaves: the current one, the one before, which programs that resolved the link may still read, and one more,
with which a person can compare after two renewals in a row."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate chain, leaf first, and its key, which belongs to the leaf."""

    chain: tuple[Certificate, ...]
    key: PrivateKey

    @property
    def leaf(self) -> Certificate:
        return self.chain[0]

    @property
    def certificate_pem(self) -> bytes:
        return bundles.certificates_pem(self.chain)

    @property
    def key_pem(self) -> Secret:
        return Secret(private_key_pem(self.key))

    def valid_at(self, now: datetime) -> bool:
        """Return True when every certificate of the chain is valid at `now`."""
        return all(one.not_valid_before_utc <= now < one.not_valid_after_utc for one in self.chain)


class PairFiles:
    """Files with one prefix in one directory."""

    def __init__(self, directory: Path, prefix: str) -> None:
        self.directory = directory
        self.prefix = prefix
        self.current = directory / f"{prefix}-current.pem"
        self.updated = directory / f"{prefix}-updated.pem"

    @property
    def key(self) -> Path:
        """Path of the key, which is in the file of its certificate."""
        return self.current

    def recover(self) -> None:
        """Finish or undo a replacement of the link that a crash interrupted."""
        if not self.updated.is_symlink():
            return
        if _read(self.updated) is not None:
            self._replace_link()
        elif self.updated.is_symlink():
            disk.remove(self.updated)

    def read_pair(self) -> Pair | None:
        """Return the current certificate and key; None when there is no usable pair.

        When the current file cannot be used, as after a loss of power, the newest one of before is that can.
        """
        self.recover()
        pair = _read(self.current)
        if pair is None and os.path.lexists(self.current):
            return next((found for path in reversed(self._by_time()) if (found := _read(path)) is not None), None)
        return pair

    def peek(self) -> Pair | None:
        """Return the current pair and write nothing: an interrupted replacement stays as it is. None without a usable pair."""
        return _read(self.current)

    def problem(self) -> str:
        """Return the path of the current file and why it cannot be used; "" when it can be used or there is none."""
        if not os.path.lexists(self.current):
            return ""
        try:
            return "" if _parse(self.current) is not None else f"{self.current}: the key is that of another certificate"
        except MooringError as error:
            text = str(error)
            return text if str(self.current) in text else f"{self.current}: {text}"

    def target(self) -> Path | None:
        """Return the file to which the current link leads; None when there is no link."""
        try:
            return self.current.readlink()
        except OSError:
            return None

    def version(self) -> tuple[int, int] | None:
        """Return what differs after each replacement: inode and time of the current file. None when there is no file."""
        try:
            found = self.current.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def files(self) -> tuple[Path, ...]:
        """Return every file that this program or a kubelet may have written, the current one last."""
        return (*self._by_time(), self.updated, self._rejected, self.current)

    @property
    def _rejected(self) -> Path:
        return self.directory / f"{self.prefix}-rejected.pem"

    def _by_time(self) -> list[Path]:
        """Return the files that are named by a time, the oldest first."""
        name = re.compile(re.escape(self.prefix) + r"-\d{4}(-\d{2}){5}\.pem")
        return sorted(path for path in self.directory.glob(f"{self.prefix}-*.pem") if name.fullmatch(path.name))

    def write_pair(self, pair: Pair, now: datetime) -> Path:
        """Write the pair to a file named by the time, and make it the current one. Return its path."""
        path = self.directory / f"{self.prefix}-{now:%Y-%m-%d-%H-%M-%S}.pem"
        # The file is durable before a link leads to it: the current link never leads to a part of a certificate.
        disk.write(path, pair.certificate_pem + pair.key_pem.reveal())
        # A crash may have left a link, and none is made in its place.
        disk.remove(self.updated)
        disk.link(self.updated, path)
        # A rename, so that a kubelet finds a certificate under the name at any moment.
        self._replace_link(path)
        return path

    def _replace_link(self, path: Path | None = None) -> None:
        """Rename the new link over the current one, unless another process has done so. `path` is where it must lead then."""
        try:
            disk.rename(self.updated, self.current)
        except ConfigError as error:
            if not isinstance(error.__cause__, FileNotFoundError) or self.target() != (path or self.target()):
                raise

    def set_aside(self) -> Path | None:
        """Rename the current link, or file, so that no program takes it for a certificate in use. Return its new path."""
        if not (self.current.is_symlink() or self.current.exists()):
            return None
        disk.rename(self.current, self._rejected)
        return self._rejected

    def prune(self) -> None:
        """Remove the oldest files, but never the current one, until KEPT_FILES are left."""
        current = self.target()
        others = [path for path in self._by_time() if path != current]
        for path in others[: max(0, len(others) - (KEPT_FILES - 1))]:
            disk.remove(path)


def _read(path: Path) -> Pair | None:
    with suppress(MooringError):
        return _parse(path)
    return None


def _parse(path: Path) -> Pair | None:
    """Return the pair in a file; None when key and certificate do not belong together. Raises MooringError."""
    data = read_limited(path)
    chain, key = bundles.certificates_among(data), load_private_key(data)
    with suppress(*UNREADABLE):
        if public_key_der(key) == _public_der(chain[0]):
            return Pair(chain, key)
    return None


def _public_der(certificate: Certificate) -> bytes:
    return public_key_der(accepted_public_key(certificate.public_key()))
