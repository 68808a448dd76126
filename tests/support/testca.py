"""A certificate authority that lives as long as a test.

Rules kept here: keys are P-256, which are fast to make; `client`, `node`, `server` and `request` use Mooring's own profiles;
`custom` builds certificates with the library directly, also ones that no authority should issue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mooring.identity import NODE_PREFIX, NODES
from mooring.pki import pem
from mooring.pki.keys import PrivateKey, generate_key, private_key_pem, signature_hash
from mooring.pki.x509 import bundles, names, profiles
from mooring.pki.x509.authority import Authority, self_signed_ca
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.clusterca import CaState, ClusterCa
from mooring.pki.x509.crl import revoked_certificate
from mooring.pki.x509.distinguishedname import DistinguishedName
from mooring.pki.x509.names import IPAddress
from mooring.pki.x509.profiles import Template
from mooring.pki.x509.requests import build_request

LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: Certificate
    key: PrivateKey

    @property
    def der(self) -> bytes:
        return self.certificate.der

    @property
    def certificate_pem(self) -> bytes:
        return bundles.certificates_pem([self.certificate])

    @property
    def key_pem(self) -> bytes:
        return private_key_pem(self.key)

    def write(self, directory: Path, name: str) -> tuple[Path, Path]:
        """Write `<name>.crt` and `<name>.key`. Return their paths."""
        certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
        certificate.write_bytes(self.certificate_pem)
        key.write_bytes(self.key_pem)
        return certificate, key


class ThrowawayCA:
    """A root made now (or at the `now` given) that signs certificates for tests."""

    def __init__(self, common_name: str = "kubernetes", now: datetime | None = None) -> None:
        self.now = now or datetime.now(UTC)
        self.key = generate_key()
        self.authority: Authority = self_signed_ca(self.key, common_name, self.now, x509.random_serial_number())

    @property
    def certificate(self) -> Certificate:
        return self.authority.certificate

    @property
    def cluster_ca(self) -> ClusterCa:
        """A cluster whose one CA this is."""
        return ClusterCa(CaState.of(self.authority))

    @property
    def certificate_pem(self) -> bytes:
        return self.authority.certificate_pem

    def sign(self, template: Template, key: PrivateKey) -> Pair:
        return Pair(self.authority.sign(template, self.now, x509.random_serial_number()), key)

    def client(self, username: str, *groups: str, lifetime: timedelta = profiles.LIFETIME) -> Pair:
        """Issue the client certificate of a user."""
        key = generate_key()
        return self.sign(profiles.client(key.public_key(), self.now, username, groups, lifetime), key)

    def node(self, name: str) -> Pair:
        """Issue the client certificate of a kubelet."""
        key = generate_key()
        return self.sign(profiles.client(key.public_key(), self.now, NODE_PREFIX + name, (NODES,)), key)

    def server(self, *hosts: str) -> Pair:
        """Issue a serving certificate for DNS names and addresses; for this machine's loopback when none is given."""
        key = generate_key()
        dns, ips = _split(hosts or LOOPBACK)
        return self.sign(profiles.apiserver_serving(key.public_key(), self.now, dns, ips), key)

    def custom(
        self,
        subject: x509.Name | DistinguishedName | str,
        *,
        key: PrivateKey | None = None,
        extensions: Sequence[tuple[x509.ExtensionType, bool]] | None = None,
        not_before: datetime | None = None,
        not_after: datetime | None = None,
        issuer: Pair | None = None,
    ) -> Pair:
        """Issue a certificate without checks. Without `extensions` it may authenticate clients."""
        own = key or generate_key()
        return Pair(Certificate(self.custom_der(subject, own, extensions, not_before, not_after, issuer)), own)

    def custom_der(
        self,
        subject: x509.Name | DistinguishedName | str,
        key: PrivateKey,
        extensions: Sequence[tuple[x509.ExtensionType, bool]] | None = None,
        not_before: datetime | None = None,
        not_after: datetime | None = None,
        issuer: Pair | None = None,
    ) -> bytes:
        """Return the DER of such a certificate, which need not be readable."""
        by = issuer or Pair(self.certificate, self.key)
        if extensions is None:
            extensions = [(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), False)]
        builder = (
            x509.CertificateBuilder()
            .subject_name(_for_builder(subject))
            .issuer_name(by.certificate.subject.for_builder())
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(not_before or self.now - timedelta(hours=1))
            .not_valid_after(not_after or self.now + timedelta(hours=1))
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(by.key, signature_hash(by.key)).public_bytes(Encoding.DER)

    def expired_client(self, username: str) -> Pair:
        """Issue a client certificate that expired an hour ago."""
        return self.custom(username, not_before=self.now - timedelta(hours=2), not_after=self.now - timedelta(hours=1))

    def crl(self, *revoked: Pair, begin: datetime | None = None, life: timedelta = timedelta(days=7)) -> bytes:
        """Issue a CRL in PEM that lists these certificates."""
        since = begin or self.now
        entries = [revoked_certificate(one.certificate.serial_number, since, "keyCompromise") for one in revoked]
        builder = x509.CertificateRevocationListBuilder(revoked_certificates=entries)
        builder = (
            builder.issuer_name(self.certificate.subject.for_builder()).last_update(since).next_update(since + life)
        )
        return pem.encode("X509 CRL", builder.sign(self.key, signature_hash(self.key)).public_bytes(Encoding.DER))

    def intermediate(self, common_name: str, path_length: int | None = None) -> Pair:
        """Issue the certificate of a CA below this one."""
        return self.custom(common_name, extensions=[(x509.BasicConstraints(True, path_length), True)])


def read(built: x509.Certificate) -> Certificate:
    """Return a certificate that the library built as Mooring reads it."""
    return Certificate(built.public_bytes(Encoding.DER))


def by_library(certificate: Certificate) -> x509.Certificate:
    """Return a certificate as the library reads it, which shares no code with Mooring's reader."""
    return x509.load_der_x509_certificate(certificate.der)


def request(
    common_name: str, organizations: Iterable[str] = (), hosts: Iterable[str] = (), key: PrivateKey | None = None
) -> tuple[bytes, PrivateKey]:
    """Return a PEM certificate request and its key."""
    own = key or generate_key()
    dns, ips = _split(hosts)
    return build_request(own, common_name, organizations, dns, ips), own


def node_request(name: str) -> tuple[bytes, PrivateKey]:
    """Return the request of a kubelet for its client certificate, and its key."""
    return request(f"system:node:{name}", ["system:nodes"])


def request_with_bad_signature(common_name: str, organizations: Iterable[str] = ()) -> bytes:
    """Return a request for another's key: its signature is not by the key that it carries."""
    text, _ = request(common_name, organizations)
    block = next(pem.blocks(text))
    return pem.encode(block.label, block.der[:-1] + bytes([block.der[-1] ^ 1]))


def with_broken_key(certificate: Certificate) -> bytes:
    """Return DER of the certificate with a public key that is no point of its curve."""
    point = certificate.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return certificate.der.replace(point, point[:-1] + bytes([point[-1] ^ 1]))


def name_of(*pairs: tuple[x509.ObjectIdentifier, str]) -> DistinguishedName:
    """Return a subject of any attributes, in order, one RDN each."""
    return DistinguishedName.of([[pair] for pair in pairs])


def bit_string_attribute() -> x509.NameAttribute[bytes]:
    """Return an attribute of a subject that is no text; the library makes one only under its private type."""
    return x509.NameAttribute(NameOID.X500_UNIQUE_IDENTIFIER, b"\0\1", x509.name._ASN1Type.BitString)


def user_name(common_name: str) -> tuple[x509.ObjectIdentifier, str]:
    return (NameOID.COMMON_NAME, common_name)


def group_name(organization: str) -> tuple[x509.ObjectIdentifier, str]:
    return (NameOID.ORGANIZATION_NAME, organization)


def _for_builder(subject: x509.Name | DistinguishedName | str) -> x509.Name:
    if isinstance(subject, x509.Name):
        return subject
    return (names.subject(subject) if isinstance(subject, str) else subject).for_builder()


def _split(hosts: Iterable[str]) -> tuple[list[str], list[IPAddress]]:
    dns: list[str] = []
    ips: list[IPAddress] = []
    for host in hosts:
        try:
            ips.append(ip_address(host))
        except ValueError:
            dns.append(host)
    return dns, ips
