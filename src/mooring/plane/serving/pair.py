"""Serving certificate and key in force, and the CAs that verify them: from the data directory, or from files of the operator.

Rules kept here:
* A certificate is used with its key only. Of the two files one is replaced first: until the other follows, the last good pair
  stays in force, and the log says so.
* New connections see the pair in force; open ones are left alone.
* `root-ca-file` must verify the certificate: neither a pair that it does not verify nor a bundle that does not verify the pair
  comes into force. An operator publishes the next CA before a certificate of that CA.
* Without `root-ca-file`, a certificate that no known CA verifies is served, with a warning: joining machines cannot verify it. A
  certificate of the operator that names no published address is warned of, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from OpenSSL import SSL

from mooring.client.files import read_limited
from mooring.clock import rfc3339
from mooring.errors import ConfigError
from mooring.pki.errors import PkiError
from mooring.pki.keys import PrivateKey, load_private_key
from mooring.pki.pem import RootCa
from mooring.pki.x509.bundles import certificates_among
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.clusterca import ClusterCa
from mooring.pki.x509.names import printable, printable_text
from mooring.plane.files.datadirectory import warn_if_exposed
from mooring.plane.files.reloading import Reloading
from mooring.plane.serving.trust import KEY, from_file, named, names_of, serving_cas
from mooring.server.transport.tls import server_context
from mooring.settings.addresses import Endpoint
from mooring.settings.serving import ServingSettings, TlsProfile

log = logging.getLogger("mooring.plane")

MAX_NAMES = 5
"""Names of a certificate that a warning lists."""
CERTIFICATE_KEY, KEY_KEY = "tls-cert-file", "tls-private-key-file"
Pair = tuple[tuple[Certificate, ...], PrivateKey]


def read_pair(settings: ServingSettings) -> Pair:
    """Read the pair that the settings name. Raises ConfigError."""
    certificate_file, key_file = Path(settings.tls_cert_file), Path(settings.tls_private_key_file)
    certificate_pem, key_pem = read_limited(certificate_file), read_limited(key_file)
    try:
        pair = _parse_pair(certificate_pem, key_pem)
    except ConfigError as error:
        raise ConfigError(f"{error}; the files are {certificate_file} and {key_file}") from None
    warn_if_exposed(key_file)
    return pair


class ServingPair:
    """Follows the pair and `root_ca`, the bundle that verifies it. `changed` is called after each change of either."""

    def __init__(
        self,
        settings: ServingSettings,
        pair: Pair,
        ca: ClusterCa,
        reloading: Reloading,
        now: Callable[[], datetime],
        changed: Callable[[], None],
        endpoints: Sequence[Endpoint] = (),
    ) -> None:
        """`pair` is the first one in force; `ca` is the cluster's own CA; `endpoints` are published. Raises ConfigError."""
        self._endpoints = tuple(endpoints)
        self.chain, self.key = pair
        self._changed = _nothing
        self._settings = settings
        self._ca = ca
        self._now = now
        self._certificate_pem = self._key_pem = b""
        root = settings.root_ca_file
        self._root_pem = self._newest_root = reloading.follow(root, self._use_root) if root else b""
        self.root_ca = RootCa(self._verifying_cas(self.chain, self._root_pem))
        if settings.tls_cert_file:
            self._certificate_pem = reloading.follow(settings.tls_cert_file, self._use_certificate)
            self._key_pem = reloading.follow(settings.tls_private_key_file, self._use_key)
            self._use_newest()
        self._changed = changed

    @property
    def names(self) -> tuple[str, ...]:
        """Names and addresses of the certificate in force; none when they cannot be read."""
        return names_of(self.chain[0])

    def follow_ca(self, own: Pair) -> None:
        """Follow a change of the cluster's CA. `own` is the renewed pair of the data directory, not used when files name another.

        Raises ConfigError when root-ca-file does not verify the renewed pair; the last good one stays in force.
        """
        pair = (self.chain, self.key) if self._settings.tls_cert_file else own
        ca_pem = self._verifying_cas(pair[0], self._root_pem)
        self.chain, self.key = pair
        self.root_ca.replace(ca_pem)
        self._changed()

    def _use_root(self, data: bytes) -> None:
        self._newest_root = data
        self._use_newest()

    def _use_certificate(self, data: bytes) -> None:
        self._certificate_pem = data
        self._use_newest()

    def _use_key(self, data: bytes) -> None:
        self._key_pem = data
        self._use_newest()

    def _use_newest(self) -> None:
        """Use the newest content of the files that fits together. Raises ConfigError for the rest."""
        problem: ConfigError | None = None
        present = newest = (self.chain, self.key)
        if self._certificate_pem and self._key_pem:  # else the pair is the cluster's own
            try:
                newest = _parse_pair(self._certificate_pem, self._key_pem)
            except ConfigError as error:
                problem = error
        for pair, root in ((newest, self._newest_root), (newest, self._root_pem), (present, self._newest_root)):
            if (pair[0], root) == (self.chain, self._root_pem):
                continue
            try:
                ca_pem = self._verifying_cas(pair[0], root)
            except ConfigError as error:
                problem = problem or error
                continue
            (self.chain, self.key), self._root_pem = pair, root
            self.root_ca.replace(ca_pem)
            self._changed()
            break
        if problem is not None:
            raise problem

    def _verifying_cas(self, chain: tuple[Certificate, ...], root_pem: bytes) -> bytes:
        """Return the CAs that verify a chain. Raises ConfigError when root-ca-file is given and does not verify it."""
        if self._settings.root_ca_file:
            bundle = from_file(root_pem, chain, self._now())
            self._warn_of_names(chain[0])
            return bundle
        if found := serving_cas(self._settings, chain, self._ca.trusted, self._now()):
            self._warn_of_names(chain[0])
            return found
        if not self._settings.tls_cert_file:
            ca = self._ca.authority.certificate
            log.warning(
                "clients cannot verify this server: its clock reads %s, and the CA of the cluster is valid from %s to %s; "
                "correct the clock",
                rfc3339(self._now()), rfc3339(ca.not_valid_before_utc), rfc3339(ca.not_valid_after_utc),
            )  # fmt: skip
            return self._ca.trusted_pem
        log.warning(
            "%s: no CA that is known here verifies the certificate of %s: joining machines, Pods and admin.conf do not trust "
            "it; name its CAs with %s",
            CERTIFICATE_KEY, printable(chain[-1].issuer), KEY,
        )  # fmt: skip
        return self._ca.trusted_pem

    def _warn_of_names(self, certificate: Certificate) -> None:
        found = named(self._endpoints, certificate)
        unnamed = ", ".join(endpoint.host for endpoint in self._endpoints if endpoint not in found)
        if not self._settings.tls_cert_file or not unnamed:
            return
        if found:
            log.warning(
                "%s: the certificate does not name %s, published beside %s: clients that use it cannot verify the server; add it "
                "to the certificate, or name what is published with control-plane-endpoint",
                CERTIFICATE_KEY, unnamed, found[0].host,
            )  # fmt: skip
            return
        names = ", ".join(map(printable_text, names_of(certificate)[:MAX_NAMES])) or "no name at all"
        log.warning(
            "%s: the certificate names no published address (%s), but %s: joining machines, Pods and admin.conf cannot verify the "
            "server; give one with a subject alternative name of them, or publish a name of it with control-plane-endpoint",
            CERTIFICATE_KEY, unnamed, names,
        )  # fmt: skip


def _parse_pair(certificate_pem: bytes, key_pem: bytes) -> Pair:
    """Read a pair. Raises ConfigError for a key of another certificate."""
    try:
        chain = certificates_among(certificate_pem)
    except PkiError as error:
        raise ConfigError(f"{CERTIFICATE_KEY}: {error}") from None
    try:
        key = load_private_key(key_pem)
    except PkiError as error:
        raise ConfigError(f"{KEY_KEY}: {error}") from None
    if chain[0].public_key() != key.public_key():
        raise ConfigError(f"{KEY_KEY}: it is not the key of the first certificate in {CERTIFICATE_KEY}")
    return chain, key


def _nothing() -> None:
    pass


# TLS context of new connections: the serving certificate in force, and the names of the CAs that sign client certificates.


class ServingContext:
    """Holds the TLS context, which is immutable once in use. `renew` replaces it for new connections; open ones are left alone."""

    def __init__(
        self,
        pair: ServingPair,
        client_cas: Callable[[], Sequence[Certificate]],
        profile: TlsProfile,
        *,
        http2: bool,
    ) -> None:
        """Raises ConfigError when the certificate and the key do not belong together."""
        self._pair = pair
        self._client_cas = client_cas
        self._profile = profile
        self._http2 = http2
        self._context = self._create()

    @property
    def current(self) -> SSL.Context:
        """The context for a new connection."""
        return self._context

    def renew(self) -> None:
        """Use the certificates that are in force now."""
        self._context = self._create()

    def _create(self) -> SSL.Context:
        return server_context(
            self._pair.chain, self._pair.key, self._client_cas(), http2=self._http2, profile=self._profile
        )
