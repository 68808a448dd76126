"""Key usages: the words of `spec.usages` and their extensions in a certificate.

Rules kept here: the list is closed (docs/protocol/certificate-signing-requests.md#validation); `signing` is `digital signature` and
`s/mime` is `email protection`; extended usages are encoded once each, in the order of Go's enumeration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier

from mooring.pki.errors import IssueError

DIGITAL_SIGNATURE = "digital signature"
KEY_ENCIPHERMENT = "key encipherment"
CERT_SIGN = "cert sign"
CRL_SIGN = "crl sign"
SERVER_AUTH = "server auth"
CLIENT_AUTH = "client auth"

KEY_USAGES: Mapping[str, str] = MappingProxyType(
    {
        "signing": "digital_signature",
        DIGITAL_SIGNATURE: "digital_signature",
        "content commitment": "content_commitment",
        KEY_ENCIPHERMENT: "key_encipherment",
        "key agreement": "key_agreement",
        "data encipherment": "data_encipherment",
        CERT_SIGN: "key_cert_sign",
        CRL_SIGN: "crl_sign",
        "encipher only": "encipher_only",
        "decipher only": "decipher_only",
    }
)
"""Usage → bit of the KeyUsage extension (RFC 5280 4.2.1.3)."""

EXTENDED_USAGES: Mapping[str, ObjectIdentifier] = MappingProxyType(
    {
        "any": ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE,
        SERVER_AUTH: ExtendedKeyUsageOID.SERVER_AUTH,
        CLIENT_AUTH: ExtendedKeyUsageOID.CLIENT_AUTH,
        "code signing": ExtendedKeyUsageOID.CODE_SIGNING,
        "email protection": ExtendedKeyUsageOID.EMAIL_PROTECTION,
        "s/mime": ExtendedKeyUsageOID.EMAIL_PROTECTION,
        "ipsec end system": ObjectIdentifier("1.3.6.1.5.5.7.3.5"),
        "ipsec tunnel": ObjectIdentifier("1.3.6.1.5.5.7.3.6"),
        "ipsec user": ObjectIdentifier("1.3.6.1.5.5.7.3.7"),
        "timestamping": ExtendedKeyUsageOID.TIME_STAMPING,
        "ocsp signing": ExtendedKeyUsageOID.OCSP_SIGNING,
        "microsoft sgc": ObjectIdentifier("1.3.6.1.4.1.311.10.3.3"),
        "netscape sgc": ObjectIdentifier("2.16.840.1.113730.4.1"),
    }
)
"""Usage → purpose of the ExtendedKeyUsage extension, in Go's order."""

USAGES: tuple[str, ...] = (*KEY_USAGES, *EXTENDED_USAGES)
"""Every word allowed in `spec.usages`."""

_BITS = tuple(dict.fromkeys(KEY_USAGES.values()))


def check(usages: Iterable[str]) -> None:
    """Raise IssueError for a word outside the list and for a combination that X.509 cannot express."""
    requested = frozenset(usages)
    for usage in sorted(requested):
        if usage not in KEY_USAGES and usage not in EXTENDED_USAGES:
            raise IssueError(f'unrecognised key usage "{usage}"')
    if requested & {"encipher only", "decipher only"} and "key agreement" not in requested:
        raise IssueError('"encipher only" and "decipher only" have a meaning only together with "key agreement"')


def key_usage(usages: Iterable[str]) -> x509.KeyUsage | None:
    """Return the KeyUsage extension for these words, or None when none of them is a bit of it."""
    bits = {KEY_USAGES[usage] for usage in usages if usage in KEY_USAGES}
    return x509.KeyUsage(**{bit: bit in bits for bit in _BITS}) if bits else None


def extended_key_usage(usages: Iterable[str]) -> x509.ExtendedKeyUsage | None:
    """Return the ExtendedKeyUsage extension for these words, or None when none of them is a purpose."""
    requested = frozenset(usages)
    purposes = dict.fromkeys(oid for usage, oid in EXTENDED_USAGES.items() if usage in requested)
    return x509.ExtendedKeyUsage(purposes) if purposes else None


def may_sign_certificates(bits: frozenset[str] | None) -> bool:
    """Return whether a key usage with these bits allows to sign certificates. An absent or empty one limits nothing, as in Go."""
    return not bits or KEY_USAGES[CERT_SIGN] in bits


def may_sign_crls(bits: frozenset[str] | None) -> bool:
    """Return whether a key usage with these bits allows to sign CRLs."""
    return not bits or KEY_USAGES[CRL_SIGN] in bits
