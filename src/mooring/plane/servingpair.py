"""What the server shows in a TLS handshake: the pair of the data directory, or one of the operator's own that follows its files.

Rules kept here:
* A certificate and a key are used together or not at all. They are two files, and one of them is replaced first: until the other
  follows, the last good pair stays in force, and the log says so.
* The pair that is in force is shown to new connections; open ones are left alone.
* Members and administrators trust the cluster's own CA. A certificate that it did not issue is taken, and warned of: joining
  machines cannot know it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from mooring.client.files import read_limited
from mooring.config import ServerConfig
from mooring.errors import ConfigError
from mooring.pki.errors import PkiError
from mooring.pki.keys import PrivateKey, load_private_key
from mooring.pki.names import told
from mooring.pki.pem import certificates
from mooring.plane.reloading import Reloading

log = logging.getLogger("mooring.plane")

CERTIFICATE_KEY, KEY_KEY = "tls-cert-file", "tls-private-key-file"
Pair = tuple[tuple[x509.Certificate, ...], PrivateKey]


def read_pair(config: ServerConfig) -> Pair:
    """The pair that the flags name. Raises ConfigError."""
    return _matching(read_limited(Path(config.tls_cert_file)), read_limited(Path(config.tls_private_key_file)))


class ServingPair:
    """The pair in force. `changed` is called after each change."""

    def __init__(self, config: ServerConfig, pair: Pair, authority: x509.Certificate, reloading: Reloading) -> None:
        """`pair` was read before; `authority` is the cluster's own CA. Raises ConfigError."""
        self.chain, self.key = pair
        self.changed: Callable[[], None] = _nothing
        self._authority = authority
        self._certificate_pem = self._key_pem = b""
        if config.tls_cert_file:
            self._warn()
            reloading.add(config.tls_cert_file, self._take_certificate)
            reloading.add(config.tls_private_key_file, self._take_key)

    def _take_certificate(self, data: bytes) -> None:
        self._certificate_pem = data
        self._use()

    def _take_key(self, data: bytes) -> None:
        self._key_pem = data
        self._use()

    def _use(self) -> None:
        if not self._certificate_pem or not self._key_pem:
            return  # the first reading of the first file
        pair = _matching(self._certificate_pem, self._key_pem)
        if pair[0] == self.chain:
            return
        self.chain, self.key = pair
        self._warn()
        self.changed()

    def _warn(self) -> None:
        if not any(_issued_by(one, self._authority) for one in self.chain):
            log.warning(
                "%s was not issued by this cluster's own CA but by %s: joining machines, and who uses admin.conf, do not trust it",
                CERTIFICATE_KEY, told(self.chain[-1].issuer),
            )  # fmt: skip


def _matching(certificate_pem: bytes, key_pem: bytes) -> Pair:
    try:
        chain = certificates(certificate_pem)
    except PkiError as error:
        raise ConfigError(f"{CERTIFICATE_KEY}: {error}") from None
    try:
        key = load_private_key(key_pem)
    except PkiError as error:
        raise ConfigError(f"{KEY_KEY}: {error}") from None
    if chain[0].public_key() != key.public_key():
        raise ConfigError(f"{KEY_KEY}: it is not the key of the first certificate in {CERTIFICATE_KEY}")
    return chain, key


def _issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _nothing() -> None:
    pass
