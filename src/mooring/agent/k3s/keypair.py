"""A certificate and its key in two files, `<name>.crt` and `<name>.key`, as k3s keeps them, replaced together.

    <name>.key.next      the key of a request that is under way
    <name>.crt.next      its certificate, while both take their places

Rules kept here (docs/protocol/k3s.md#files-of-an-agent):
* A key is on disk before it is used, and the pair in use stays until the next one is whole. A crash between the two renames is
  finished by the next read: the certificate in place belongs to the key that waits.
* Each file has mode 0600 and is written whole or not at all.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from cryptography import x509

from mooring.agent import disk
from mooring.agent.certificates.pairfiles import Pair
from mooring.client.files import read_limited
from mooring.errors import MooringError
from mooring.pki import pem
from mooring.pki.keys import (
    PrivateKey,
    accepted_public_key,
    generate_key,
    load_private_key,
    private_key_pem,
    public_key_der,
)


class KeyPairFiles:
    """The files of one certificate."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.current = directory / f"{name}.crt"
        self.key = directory / f"{name}.key"
        self.next_key = directory / f"{name}.key.next"
        self.next_certificate = directory / f"{name}.crt.next"

    def read_pair(self) -> Pair | None:
        """Return the certificate with its key; None when there is no usable pair."""
        self.recover()
        return _pair(self.current, self.key)

    def version(self) -> tuple[int, int] | None:
        """Return what differs after each replacement: inode and time of the certificate. None without one."""
        try:
            found = self.current.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def recover(self) -> None:
        """Finish or undo a replacement that a crash interrupted."""
        if self.next_certificate.exists():
            if _pair(self.next_certificate, self.next_key) is not None:
                disk.rename(self.next_certificate, self.current)
            else:
                disk.remove(self.next_certificate)
        if self.next_key.exists() and _pair(self.current, self.next_key) is not None:
            disk.rename(self.next_key, self.key)

    def ensure_pending_key(self) -> PrivateKey:
        """Return the key for the next request: that of an earlier run, or a new one, which is on disk then."""
        key = self.read_pending_key()
        if key is None:
            key = generate_key()
            self.write_pending_key(key)
        return key

    @property
    def pending_key(self) -> Path:
        return self.next_key

    def read_pending_key(self) -> PrivateKey | None:
        """Return the key of a pending request; None when there is no usable one."""
        with suppress(MooringError):
            return load_private_key(read_limited(self.next_key))
        return None

    def write_pending_key(self, key: PrivateKey) -> None:
        disk.write(self.next_key, private_key_pem(key))

    def drop_pending_key(self) -> None:
        """Remove the key of a request that has ended."""
        disk.remove(self.next_key)

    def replace(self, pair: Pair) -> None:
        """Put the certificate of the pending key in place, with its key."""
        disk.write(self.next_certificate, pair.certificate_pem)
        self.recover()

    def remove(self) -> None:
        """Remove the pair and what a request has left, the certificate first."""
        for path in (self.current, self.next_certificate, self.key, self.next_key):
            disk.remove(path)


def _pair(certificate: Path, key: Path) -> Pair | None:
    with suppress(MooringError, *pem.UNPARSABLE):
        chain = pem.certificates_among(read_limited(certificate))
        private = load_private_key(read_limited(key))
        if _public_der(chain[0]) == public_key_der(private):
            return Pair(chain, private)
    return None


def _public_der(certificate: x509.Certificate) -> bytes:
    return public_key_der(accepted_public_key(certificate.public_key()))
