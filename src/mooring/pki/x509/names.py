"""Subjects and subject alternative names: built, read, and rebuilt the way Kubernetes does.

Rules kept here:
* A subject states organizations (groups) first and the common name (user) last, all values of one attribute in one RDN, as
  Go's `pkix.Name` encodes it; `rebuilt` keeps only the standard attributes, in that order
  (docs/protocol/certificate-signing-requests.md#signing). Values that share an RDN are a set: DER sorts them, shorter ones first,
  so group order is not kept (nor is it by Go).
* With several common names the last counts, as in Go; in what we encode no value is empty or listed twice.
* Of the alternative names only DNS, IP, email and URI exist for us; a range is not an address.
* Node names may be 253 characters and `system:node:` comes before them: the 64 of X.520 is not enforced, as Go does not.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import TypeAlias

from cryptography import x509
from cryptography.x509.oid import NameOID, ObjectIdentifier

IPAddress: TypeAlias = IPv4Address | IPv6Address

UID_ATTRIBUTE = ObjectIdentifier("1.3.6.1.4.1.57683.2")
"""The attribute a client certificate states a user's UID with (docs/protocol/authentication.md#client-certificates)."""

MAX_TOLD = 200
"""Characters of a name in a message: who presents a certificate chooses them."""

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


def values(name: x509.Name, oid: ObjectIdentifier) -> tuple[str, ...]:
    """The text values of an attribute, all of them, in order."""
    found = (attribute.value for attribute in name.get_attributes_for_oid(oid))
    return tuple(value for value in found if isinstance(value, str))


def common_name(name: x509.Name) -> str:
    """The last common name, or an empty text."""
    return (values(name, NameOID.COMMON_NAME) or ("",))[-1]


def organizations(name: x509.Name) -> tuple[str, ...]:
    return values(name, NameOID.ORGANIZATION_NAME)


def told(name: x509.Name) -> str:
    """The name for people (`CN=jane,O=dev`): on one line, and no longer than `MAX_TOLD`, whatever somebody wrote into it."""
    text = "".join(one if one.isprintable() else " " for one in name.rfc4514_string())
    return f"{text[:MAX_TOLD]}…" if len(text) > MAX_TOLD else text or "(empty)"


def subject(name: str, groups: Iterable[str] = (), uid: str = "") -> x509.Name:
    """The subject of a user `name` in `groups`; `uid` in its attribute, when there is one."""
    return _encoded(
        [(NameOID.ORGANIZATION_NAME, tuple(groups)), (NameOID.COMMON_NAME, (name,)), (UID_ATTRIBUTE, (uid,))]
    )


def rebuilt(name: x509.Name) -> x509.Name:
    """`name` with its standard attributes only, in standard order."""
    many = [(oid, values(name, oid)) for oid in _STANDARD_ORDER]
    return _encoded(many + [(oid, values(name, oid)[-1:]) for oid in _SINGLE])


def _encoded(attributes: Sequence[tuple[ObjectIdentifier, tuple[str, ...]]]) -> x509.Name:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library warns about common names above 64 characters; see the rules above
        return x509.Name(
            x509.RelativeDistinguishedName(x509.NameAttribute(oid, text, _validate=False) for text in unique)
            for oid, texts in attributes
            if (unique := dict.fromkeys(text for text in texts if text))
        )


@dataclass(frozen=True, slots=True)
class AlternativeNames:
    """The subject alternative names that Kubernetes knows."""

    dns: tuple[str, ...] = ()
    ips: tuple[IPAddress, ...] = ()
    emails: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.dns or self.ips or self.emails or self.uris)

    def extension(self) -> x509.SubjectAlternativeName:
        """The extension that states these names. Only for names that are not empty. ValueError for text outside ASCII."""
        return x509.SubjectAlternativeName(
            [
                *map(x509.DNSName, self.dns),
                *map(x509.RFC822Name, self.emails),
                *map(x509.IPAddress, self.ips),
                *map(x509.UniformResourceIdentifier, self.uris),
            ]
        )


NO_NAMES = AlternativeNames()


def alternative_names(extensions: x509.Extensions) -> AlternativeNames:
    """The names of a certificate or request. Raises ValueError for an IP range, which names nobody."""
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return NO_NAMES
    ips: list[IPAddress] = []
    for address in names.get_values_for_type(x509.IPAddress):
        if not isinstance(address, IPv4Address | IPv6Address):
            raise ValueError("a subject alternative name is an IP range, not an address")
        ips.append(address)
    return AlternativeNames(
        tuple(names.get_values_for_type(x509.DNSName)),
        tuple(ips),
        tuple(names.get_values_for_type(x509.RFC822Name)),
        tuple(names.get_values_for_type(x509.UniformResourceIdentifier)),
    )
