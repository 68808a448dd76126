"""CAs that verify the serving certificate: the bundle in cluster-info, kube-root-ca.crt and the kubeconfigs of the data directory.

Rules kept here (docs/adr/0027-serving-trust-and-issuing-trust.md):
* The content of `root-ca-file` is the bundle, if the flag is given. It must verify the serving certificate.
* Otherwise the bundle is what verifies the serving certificate: the cluster's own CAs, which are several during a rollover, else a
  root at the end of `tls-cert-file`, else one of the machine's roots.
* A client can verify the server under a published address only when the bundle verifies the certificate, and the certificate has
  the address as a subject alternative name. The common name does not count (RFC 9525).
* The CA that signs client certificates is part of it only when it also verifies the serving certificate.
"""

from __future__ import annotations

import ssl
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path

from OpenSSL import crypto

from mooring.client.files import read_limited
from mooring.clock import rfc3339
from mooring.errors import ConfigError
from mooring.pki.errors import CertificateUnreadableError, PkiError
from mooring.pki.x509.bundles import certificates, certificates_among, certificates_pem
from mooring.pki.x509.canonicalnames import canonical_address
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.names import alternative_names, printable
from mooring.settings.addresses import Endpoint
from mooring.settings.serving import ServingSettings

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
        raise ConfigError(
            f"{KEY}: no certificate in it verifies the serving certificate; append the root of its issuer, and put "
            "intermediates behind the certificate in tls-cert-file"
        )
    return certificates_pem(bundle)


def anchor(chain: Chain, now: datetime, anchors: Iterable[Certificate] | None = None) -> Certificate | None:
    """Return the certificate of `anchors`, by default the machine's roots, that verifies `chain` at `now`; None when none does."""
    if anchors is None:
        return _verified_by(chain, now, _store_of_machine())
    # each alone: of several with one name OpenSSL tries the first only, where no key identifier tells them apart
    return next((found for one in anchors if (found := _verified_by(chain, now, _store_of(one))) is not None), None)


def _store_of(anchor: Certificate) -> crypto.X509Store:
    store = crypto.X509Store()
    store.set_flags(crypto.X509StoreFlags.PARTIAL_CHAIN)
    with suppress(crypto.Error):  # OpenSSL does not read all that Go reads, and no client of it can trust this CA
        store.add_cert(_of_openssl(anchor))
    return store


def _store_of_machine() -> crypto.X509Store:
    store, roots = crypto.X509Store(), ssl.get_default_verify_paths()
    with suppress(crypto.Error):  # this machine has no roots
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
