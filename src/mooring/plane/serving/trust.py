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
from datetime import datetime
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from OpenSSL import crypto

from mooring.client.files import read_limited
from mooring.errors import ConfigError
from mooring.pki.errors import PkiError
from mooring.pki.pem import certificates, certificates_pem
from mooring.pki.x509.canonicalnames import canonical_address
from mooring.pki.x509.names import alternative_names
from mooring.settings.addresses import Endpoint
from mooring.settings.serving import ServingSettings

KEY = "root-ca-file"
Chain = Sequence[x509.Certificate]


def serving_cas(settings: ServingSettings, chain: Chain, own: Sequence[x509.Certificate], now: datetime) -> bytes:
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
        bundle = certificates(data)
    except PkiError as error:
        raise ConfigError(f"{KEY}: {error}") from None
    if anchor(chain, now, bundle) is None:
        raise ConfigError(
            f"{KEY}: no certificate in it verifies the serving certificate; append the root of its issuer, and put "
            "intermediates behind the certificate in tls-cert-file"
        )
    return certificates_pem(bundle)


def anchor(chain: Chain, now: datetime, anchors: Iterable[x509.Certificate] | None = None) -> x509.Certificate | None:
    """Return the certificate of `anchors`, by default the machine's roots, that verifies `chain` at `now`; None when none does."""
    store = crypto.X509Store()
    store.set_time(now)
    if anchors is None:
        roots = ssl.get_default_verify_paths()
        try:
            store.load_locations(roots.cafile, roots.capath)
        except crypto.Error:
            return None  # this machine has no roots
    else:
        store.set_flags(crypto.X509StoreFlags.PARTIAL_CHAIN)
        for one in anchors:
            store.add_cert(crypto.X509.from_cryptography(one))
    leaf, *intermediates = (crypto.X509.from_cryptography(one) for one in chain)
    try:
        verified = crypto.X509StoreContext(store, leaf, intermediates).get_verified_chain()
    except crypto.X509StoreContextError:
        return None
    return verified[-1].to_cryptography()


def verifiable(endpoints: Iterable[Endpoint], chain: Chain, ca_pem: bytes, now: datetime) -> tuple[Endpoint, ...]:
    """Return those of `endpoints` under which a client that trusts `ca_pem` can verify the server, in their order."""
    if anchor(chain, now, certificates(ca_pem)) is None:
        return ()
    return named(endpoints, chain[0])


def named(endpoints: Iterable[Endpoint], certificate: x509.Certificate) -> tuple[Endpoint, ...]:
    """Return those of `endpoints` whose host the certificate names."""
    names = names_of(certificate)
    return tuple(endpoint for endpoint in endpoints if _is_named(endpoint.host, names))


@lru_cache(4)
def names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the DNS names and addresses of a certificate; none when they cannot be read."""
    try:
        found = alternative_names(certificate.extensions)
    except ValueError:
        return ()
    return (*found.dns, *map(str, found.ips))


def _is_named(host: str, names: Collection[str]) -> bool:
    try:
        return str(canonical_address(ip_address(host))) in names
    except ValueError:
        wanted = host.rstrip(".").lower()
    dns = {name.rstrip(".").lower() for name in names}
    return wanted in dns or f"*.{wanted.partition('.')[2]}" in dns


def _is_root(certificate: x509.Certificate) -> bool:
    """Return whether a certificate is a CA that signed itself. A CA and what it issued may have one name."""
    try:
        certificate.verify_directly_issued_by(certificate)
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return certificate.version is x509.Version.v1
    except (ValueError, TypeError, InvalidSignature):
        return False
