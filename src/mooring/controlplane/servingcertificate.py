"""The serving certificate: the pair of a server, and what its certificate must name."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path

from OpenSSL import SSL, crypto

from mooring.client.files import read_limited
from mooring.clock import rfc3339
from mooring.controlplane.datadirectory import Reloading, warn_if_exposed
from mooring.errors import ConfigError
from mooring.pki.errors import CertificateUnreadableError, PkiError
from mooring.pki.keys import PrivateKey, load_private_key
from mooring.pki.pem import RootCa
from mooring.pki.x509.bundles import certificates, certificates_among, certificates_pem
from mooring.pki.x509.canonicalnames import canonical_address
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.clusterca import ClusterCa
from mooring.pki.x509.names import alternative_names, printable, printable_text
from mooring.server.transport.tls import server_context
from mooring.settings.addresses import Endpoint
from mooring.settings.serving import ServingSettings, TlsProfile

# CAs that verify the serving certificate: the bundle in cluster-info, kube-root-ca.crt and the kubeconfigs of the data directory.
#
# Rules kept here (docs/adr/0027-serving-trust-and-issuing-trust.md):
# * The content of `root-ca-file` is the bundle, if the flag is given. It must verify the serving certificate.
# * Otherwise the bundle is what verifies the serving certificate: the cluster's own CAs, which are several during a rollover,
#   else a root at the end of `tls-cert-file`, else one of the machine's roots.
# * A client can verify the server under a published address only when the bundle verifies the certificate, and the certificate
#   has the address as a subject alternative name. The common name does not count (RFC 9525).
# * The CA that signs client certificates is part of it only when it also verifies the serving certificate.

KEY = "root-ca-file"
Chain = Sequence[Certificate]


def serving_cas(settings: ServingSettings, chain: Chain, own: Sequence[Certificate], now: datetime) -> bytes:
    """Return the bundle for a serving certificate, as PEM; empty when no known CA verifies it. Raises ConfigError.

    `own` are the cluster's own CAs.
    """
    if settings.root_ca_file:
        return from_file(read_limited(Path(settings.root_ca_file)), chain, now)
    for candidates in (own, [chain[-1]] if _is_root(chain[-1]) else []):
        if candidates and anchor(chain, now, candidates) is not None:
            return certificates_pem(candidates)
    found = anchor(chain, now)
    return b"" if found is None else certificates_pem([found])


NO_NAMES = (
    "the certificate has no subject alternative name, and no client reads the common name: joining machines, Pods and admin.conf "
    "cannot verify the server, whatever CA they trust; give one that names a published address"
)


def from_file(data: bytes, chain: Chain, now: datetime) -> bytes:
    """Return the bundle of `root-ca-file`. Raises ConfigError when it does not verify the serving certificate."""
    try:
        bundle = certificates_among(data)
    except PkiError as error:
        raise ConfigError(f"{KEY}: {error}") from None
    if anchor(chain, now, bundle) is None:
        issuers = {one.issuer.der for one in chain}
        for ca in bundle:
            if ca.subject.der in issuers and not ca.not_valid_before_utc <= now <= ca.not_valid_after_utc:
                begin, end = rfc3339(ca.not_valid_before_utc), rfc3339(ca.not_valid_after_utc)
                raise ConfigError(
                    f"{KEY}: {printable(ca.subject)} is valid from {begin} to {end}, and it is {rfc3339(now)}: replace the CA, or "
                    "correct the clock"
                )
        if not names_of(chain[0]):
            raise ConfigError(f"{CERTIFICATE_KEY}: {NO_NAMES}")
        raise ConfigError(
            f"{KEY}: no certificate in it verifies the serving certificate; append the root of its issuer, and put "
            "intermediates behind the certificate in tls-cert-file"
        )
    return certificates_pem(bundle)


def anchor(chain: Chain, now: datetime, anchors: Iterable[Certificate] | None = None) -> Certificate | None:
    """Return the certificate of `anchors`, by default the machine's roots, that verifies `chain` at `now`; None when none does."""
    if anchors is None:
        return _verified_by(chain, now, _store_of_machine())
    # Each alone: of several with one name OpenSSL tries the first only, where no key identifier tells them apart.
    return next((found for one in anchors if (found := _verified_by(chain, now, _store_of(one))) is not None), None)


def _store_of(anchor: Certificate) -> crypto.X509Store:
    store = crypto.X509Store()
    store.set_flags(crypto.X509StoreFlags.PARTIAL_CHAIN)
    # OpenSSL does not read all that Go reads, and no client of it can trust this CA.
    with suppress(crypto.Error):
        store.add_cert(_of_openssl(anchor))
    return store


def _store_of_machine() -> crypto.X509Store:
    store, roots = crypto.X509Store(), ssl.get_default_verify_paths()
    # This machine has no roots.
    with suppress(crypto.Error):
        store.load_locations(roots.cafile, roots.capath)
    return store


def _verified_by(chain: Chain, now: datetime, store: crypto.X509Store) -> Certificate | None:
    store.set_time(now)
    try:
        leaf, *intermediates = map(_of_openssl, chain)
        verified = crypto.X509StoreContext(store, leaf, intermediates).get_verified_chain()
        return Certificate(crypto.dump_certificate(crypto.FILETYPE_ASN1, verified[-1]))
    except (crypto.Error, crypto.X509StoreContextError, CertificateUnreadableError):
        return None


def _of_openssl(certificate: Certificate) -> crypto.X509:
    return crypto.load_certificate(crypto.FILETYPE_ASN1, certificate.der)


def verifiable(endpoints: Iterable[Endpoint], chain: Chain, ca_pem: bytes, now: datetime) -> tuple[Endpoint, ...]:
    """Return those of `endpoints` under which a client that trusts `ca_pem` can verify the server, in their order."""
    if anchor(chain, now, certificates(ca_pem)) is None:
        return ()
    return named(endpoints, chain[0])


def named(endpoints: Iterable[Endpoint], certificate: Certificate) -> tuple[Endpoint, ...]:
    """Return those of `endpoints` whose host the certificate names."""
    names = names_of(certificate)
    return tuple(endpoint for endpoint in endpoints if _is_named(endpoint.host, names))


@lru_cache(4)
def names_of(certificate: Certificate) -> tuple[str, ...]:
    """Return the DNS names and addresses of a certificate."""
    found = alternative_names(certificate.extensions)
    return (*found.dns, *map(str, found.ips))


def _is_named(host: str, names: Collection[str]) -> bool:
    try:
        return str(canonical_address(ip_address(host))) in names
    except ValueError:
        wanted = host.rstrip(".").lower()
    dns = {name.rstrip(".").lower() for name in names}
    return wanted in dns or f"*.{wanted.partition('.')[2]}" in dns


def _is_root(certificate: Certificate) -> bool:
    """Return whether a certificate is a CA that signed itself. A CA and what it issued may have one name."""
    if not certificate.is_issued_by(certificate):
        return False
    constraints = certificate.extensions.basic_constraints
    return certificate.version < 3 if constraints is None else constraints.ca


# Serving certificate and key in force, and the CAs that verify them: from the data directory, or from files of the operator.
#
# Rules kept here:
# * A certificate is used with its key only. Of the two files one is replaced first: until the other follows, the last good pair
#   stays in force, and the log says so.
# * New connections see the pair in force; open ones are left alone.
# * `root-ca-file` must verify the certificate: neither a pair that it does not verify nor a bundle that does not verify the pair
#   comes into force. An operator publishes the next CA before a certificate of that CA.
# * Without `root-ca-file`, a certificate that no known CA verifies is served, with a warning: joining machines cannot verify it.
#   A certificate of the operator that names no published address is warned of, too.

log = logging.getLogger("mooring.controlplane")

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
        # Else the pair is the cluster's own.
        if self._certificate_pem and self._key_pem:
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
        if not names_of(chain[0]):
            # Before its CA, which does not help.
            self._warn_of_names(chain[0])
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
        if not names_of(certificate):
            log.warning("%s: %s (%s)", CERTIFICATE_KEY, NO_NAMES, unnamed)
            return
        if found:
            log.warning(
                "%s: the certificate does not name %s, published beside %s: clients that use it cannot verify the server; add it "
                "to the certificate, or name what is published with control-plane-endpoint",
                CERTIFICATE_KEY, unnamed, found[0].host,
            )  # fmt: skip
            return
        names = ", ".join(map(printable_text, names_of(certificate)[:MAX_NAMES]))
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
