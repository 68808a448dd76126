"""X.509 subjects and subject alternative names, encoded and read as Kubernetes does; SPIFFE IDs of workloads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_network

from cryptography import x509
from cryptography.x509.oid import NameOID, ObjectIdentifier

from mooring.pki.x509.canonicalnames import IPAddress as IPAddress
from mooring.pki.x509.canonicalnames import canonical_address
from mooring.pki.x509.distinguishedname import DistinguishedName
from mooring.pki.x509.extensions import Extensions

# X.509 subjects and subject alternative names, encoded and read as Kubernetes does.
#
# Rules kept here:
# * A subject states organizations (groups) first and the common name (user) last, all values of one attribute in one RDN, as
#   Go's `pkix.Name` encodes it; `standard_subject` keeps only the standard attributes, in that order
#   (docs/protocol/certificate-signing-requests.md#signing). Values that share an RDN are a set: DER sorts them, shorter ones first,
#   so the order of groups is lost, as in Go.
# * The last of several common names counts, as in Go. Encoded subjects have no empty value, and none twice.
# * Of the alternative names only DNS, IP, email and URI are read. An IPv4-mapped address is read as the IPv4 address, once.
# * Node names may be 253 characters and `system:node:` comes before them: the limit of 64 in X.520 is not enforced, as in Go.

UID_ATTRIBUTE = ObjectIdentifier("1.3.6.1.4.1.57683.2")
"""Attribute of a client certificate that contains the user's UID (docs/protocol/authentication.md#client-certificates)."""

MAX_PRINTED = 200
"""Characters of a name in a message; the presenter of a certificate chooses them."""

# Go: crypto/x509/pkix Name.ToRDNSequence. The last two hold one value only.
_STANDARD_ORDER = (
    NameOID.COUNTRY_NAME,
    NameOID.ORGANIZATION_NAME,
    NameOID.ORGANIZATIONAL_UNIT_NAME,
    NameOID.LOCALITY_NAME,
    NameOID.STATE_OR_PROVINCE_NAME,
    NameOID.STREET_ADDRESS,
    NameOID.POSTAL_CODE,
)
_SINGLE = (NameOID.COMMON_NAME, NameOID.SERIAL_NUMBER)


def texts(name: DistinguishedName) -> dict[ObjectIdentifier, tuple[str, ...]]:
    """Return the values of all attributes, in order. A name may have thousands."""
    found: dict[ObjectIdentifier, list[str]] = {}
    for oid, text in name.attributes:
        found.setdefault(oid, []).append(text)
    return {oid: tuple(values) for oid, values in found.items()}


def values(name: DistinguishedName, oid: ObjectIdentifier) -> tuple[str, ...]:
    """Return all values of an attribute, in order."""
    return tuple(text for found, text in name.attributes if found == oid)


def common_name(name: DistinguishedName) -> str:
    """Return the last common name, or ""."""
    return (values(name, NameOID.COMMON_NAME) or ("",))[-1]


def organizations(name: DistinguishedName) -> tuple[str, ...]:
    """Return the organizations, which are the groups of a user."""
    return values(name, NameOID.ORGANIZATION_NAME)


def printable(name: DistinguishedName) -> str:
    """Return the name for a message, such as `CN=jane,O=dev`: on one line, at most `MAX_PRINTED` characters."""
    return printable_text(name.rfc4514_string(MAX_PRINTED + 1))


def printable_text(text: str) -> str:
    """Return a text of a certificate for a message: on one line, at most `MAX_PRINTED` characters."""
    printed = "".join(one if one.isprintable() else " " for one in text[:MAX_PRINTED])
    return f"{printed}…" if len(text) > MAX_PRINTED else printed or "(empty)"


def subject(name: str, groups: Iterable[str] = (), uid: str = "", unit: str = "") -> DistinguishedName:
    """Return the subject of a user `name` in `groups`, with the organizational unit and the attribute for `uid` when they are not
    empty."""
    return _encode(
        [
            (NameOID.ORGANIZATION_NAME, tuple(groups)),
            (NameOID.ORGANIZATIONAL_UNIT_NAME, (unit,)),
            (NameOID.COMMON_NAME, (name,)),
            (UID_ATTRIBUTE, (uid,)),
        ]
    )


def standard_subject(name: DistinguishedName) -> DistinguishedName:
    """Return `name` with its standard attributes only, in standard order."""
    every = texts(name)
    multi_valued = [(oid, every.get(oid, ())) for oid in _STANDARD_ORDER]
    return _encode(multi_valued + [(oid, every.get(oid, ())[-1:]) for oid in _SINGLE])


def _encode(attributes: Sequence[tuple[ObjectIdentifier, tuple[str, ...]]]) -> DistinguishedName:
    return DistinguishedName.of([(oid, text) for text in dict.fromkeys(texts) if text] for oid, texts in attributes)


@dataclass(frozen=True, slots=True)
class AlternativeNames:
    """Subject alternative names of the types that Kubernetes reads."""

    dns: tuple[str, ...] = ()
    ips: tuple[IPAddress, ...] = ()
    emails: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.dns or self.ips or self.emails or self.uris)

    def extension(self) -> x509.SubjectAlternativeName:
        """Return the extension with these names, which must not be empty. Raises ValueError for text outside ASCII."""
        return x509.SubjectAlternativeName(
            [
                *map(x509.DNSName, self.dns),
                *map(x509.RFC822Name, self.emails),
                *map(x509.IPAddress, self.ips),
                *map(x509.UniformResourceIdentifier, self.uris),
            ]
        )

    def constraints(self) -> x509.NameConstraints:
        """Return the name constraints that permit these DNS names and addresses, and the names below the former."""
        networks = (x509.IPAddress(ip_network(address)) for address in self.ips)
        return x509.NameConstraints([*map(x509.DNSName, self.dns), *networks], None)


NO_NAMES = AlternativeNames()


def alternative_names(extensions: Extensions) -> AlternativeNames:
    """Return the names of a certificate or request, with each address once and in its canonical form."""
    found = extensions.alternative_names
    if found is None:
        return NO_NAMES
    return AlternativeNames(
        found.dns, tuple(dict.fromkeys(map(canonical_address, found.addresses))), found.emails, found.uris
    )


# SPIFFE IDs of workloads, which an X.509-SVID carries as its one URI.
#
# Rules kept here (SPIFFE-ID 2.1 and 2.2, X509-SVID 2 and 4):
# * A trust domain has lower-case letters, digits, dots, dashes and underscores, at most 255. It has no port and no user.
# * The path of a ServiceAccount is `/ns/<namespace>/sa/<name>`, as with SPIRE and Istio. Both are names of objects: no segment is
#   empty, `.` or `..`, and every character may stand in a path.

SCHEME = "spiffe://"
MAX_TRUST_DOMAIN = 255

_TRUST_DOMAIN = re.compile(rf"[a-z0-9._-]{{1,{MAX_TRUST_DOMAIN}}}", re.ASCII)


def is_trust_domain(text: str) -> bool:
    """Return whether a text is the name of a trust domain."""
    return _TRUST_DOMAIN.fullmatch(text) is not None


def service_account_id(trust_domain: str, namespace: str, name: str) -> str:
    """Return the SPIFFE ID of a ServiceAccount."""
    return f"{SCHEME}{trust_domain}/ns/{namespace}/sa/{name}"
