"""Names of subjects and issuers, read as Go's `crypto/x509` reads them, and certificates that keep their bytes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.x509.oid import ObjectIdentifier

from mooring.pki.keys import PrivateKey, signature_hash
from mooring.pki.x509 import der
from mooring.pki.x509.der import DerError, Element

# The name of a subject or an issuer, read as Go's `crypto/x509` reads it (`parseName`, `parseASN1String`).
#
# Rules kept here:
# * Values are texts: UTF8String, PrintableString (with `*` and `&`, as in Go), IA5String, NumericString, BMPString without
#   surrogates, and T61String, which is read as Latin-1. A value of another type, or that is not text of its type, makes a name
#   unreadable.
# * Two names are the same when their bytes are. A CA is found by the bytes of its name, as in Go.
# * The name stays as it stands in the certificate: what is issued or certified again has the same bytes.

_UTF8, _NUMERIC, _PRINTABLE, _T61, _IA5, _BMP = 0x0C, 0x12, 0x13, 0x14, 0x16, 0x1E
_KINDS = {
    _UTF8: "UTF8String",
    _NUMERIC: "NumericString",
    _PRINTABLE: "PrintableString",
    _T61: "T61String",
    _IA5: "IA5String",
    _BMP: "BMPString",
}
_PRINTABLES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789'()+,-./ :=?*&")
_DIGITS = frozenset(b"0123456789 ")
_NONCHARACTERS = frozenset((*range(0xFDD0, 0xFDF0), 0xFFFE, 0xFFFF))

Attribute = tuple[ObjectIdentifier, str]


@dataclass(frozen=True, slots=True)
class DistinguishedName:
    """A name: its bytes, and the attributes of each RDN in order."""

    der: bytes
    rdns: tuple[tuple[Attribute, ...], ...] = field(compare=False)

    @classmethod
    def read(cls, element: Element) -> DistinguishedName:
        """Read the SEQUENCE of a name. Raises DerError, whose text says which attribute cannot be read."""
        sets = element.fields()
        return cls(element.encoding, tuple(tuple(_attributes(sets.next(der.SET))) for _ in iter(sets.__bool__, False)))

    @classmethod
    def of(cls, rdns: Iterable[Iterable[Attribute]]) -> DistinguishedName:
        """Encode these attributes, as texts of the type that RFC 5280 gives each. Empty RDNs are left out."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the library warns of common names above 64 characters
            name = x509.Name(
                x509.RelativeDistinguishedName([x509.NameAttribute(oid, text, _validate=False) for oid, text in texts])
                for rdn in rdns
                if (texts := tuple(rdn))
            )
        return cls.read(der.only(name.public_bytes(), der.SEQUENCE))

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        """All attributes, in order."""
        return tuple(one for rdn in self.rdns for one in rdn)

    def rfc4514_string(self, most: int = sys.maxsize) -> str:
        """Return the name in the form of RFC 4514, such as `CN=jane,O=dev`: the last RDN is first.

        What stands behind the first `most` characters may be missing: a text that is cut off is not formatted to its end.
        """
        text = ""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for place, rdn in enumerate(reversed(self.rdns)):
                text += "," if place else ""
                for position, (oid, value) in enumerate(rdn):
                    if len(text) > most:
                        return text
                    text += ("+" if position else "") + _rfc4514((oid, value[:most]))
        return text

    def for_builder(self) -> x509.Name:
        """Return the name for a builder of the library. Raises DerError when the library would write other bytes."""
        name = None
        with warnings.catch_warnings(), suppress(ValueError):
            warnings.simplefilter("ignore")
            name = x509.Name.from_bytes(self.der)
        if name is None or name.public_bytes() != self.der:
            raise DerError("the name cannot be written as it stands there")
        return name

    def __repr__(self) -> str:
        return f"DistinguishedName({self.rfc4514_string()!r})"


NO_NAME = DistinguishedName.of(())


def _rfc4514(attribute: Attribute) -> str:
    return x509.NameAttribute(*attribute, _validate=False).rfc4514_string()


def _attributes(rdn: der.Element) -> Iterator[Attribute]:
    for element in rdn.fields():
        if element.tag != der.SEQUENCE:
            raise DerError("an attribute is of another type")
        fields = element.fields()
        oid = der.object_identifier(fields.next(der.OID))
        yield oid, _text(oid, fields.any())


def _text(oid: ObjectIdentifier, value: der.Element) -> str:
    text = _decoded(value.tag, value.content)
    if text is None:
        kind = _KINDS.get(value.tag)
        what = f"has a value that is no {kind}" if kind else "has a value that is no text"
        raise DerError(f"the attribute {oid.dotted_string} {what}")
    return text


def _decoded(tag: int, content: bytes) -> str | None:
    try:
        if tag == _UTF8:
            return content.decode()
        if tag == _PRINTABLE and _PRINTABLES.issuperset(content):
            return content.decode("ascii")
        if tag == _T61:
            return content.decode("latin-1")
        if tag == _IA5:
            return content.decode("ascii")
        if tag == _NUMERIC and _DIGITS.issuperset(content):
            return content.decode("ascii")
        if tag == _BMP:
            text = content.removesuffix(b"\0\0") if len(content) % 2 == 0 else content
            decoded = text.decode("utf-16-be")
            if len(decoded) * 2 == len(text) and _NONCHARACTERS.isdisjoint(map(ord, decoded)):
                return decoded
    except UnicodeDecodeError:
        pass
    return None


# Certificates and CRLs whose names keep their bytes, also where the library would write others.
#
# Rules kept here: clients find an issuer by the bytes of its name. The library encodes a name again, and refuses some that
# Go reads, such as Latin-1 in a T61String. Then it signs with a name in its place, which is exchanged before the key signs again.

_PLACEHOLDER = x509.Name([])
_ISSUER, _SUBJECT = 1, 3
"""Places among the SEQUENCEs of a certificate: signature algorithm, issuer, validity, subject. A CRL begins with the first two."""


def signed_with(
    sign: Callable[[x509.Name, x509.Name], bytes],
    key: PrivateKey,
    issuer: DistinguishedName,
    subject: DistinguishedName,
) -> bytes:
    """Return the DER that `sign` makes for an issuer and a subject, with the bytes of both names. A CRL has no subject.

    `key` signs. Raises what it and `sign` raise.
    """
    names = (_for_builder(issuer), _for_builder(subject))
    encoding = sign(names[0] or _PLACEHOLDER, names[1] or _PLACEHOLDER)
    if None not in names:
        return encoding
    whole = der.only(encoding, der.SEQUENCE).fields()
    fields = list(whole.next(der.SEQUENCE).fields())
    places = [place for place, one in enumerate(fields) if one.tag == der.SEQUENCE]
    parts = [one.encoding for one in fields]
    parts[places[_ISSUER]] = issuer.der
    if names[1] is None:
        parts[places[_SUBJECT]] = subject.der
    data = der.encoded(der.SEQUENCE, *parts)
    algorithm = whole.next(der.SEQUENCE).encoding
    return der.encoded(der.SEQUENCE, data, algorithm, der.encoded(der.BIT_STRING, b"\0", _signature(key, data)))


def _for_builder(name: DistinguishedName) -> x509.Name | None:
    try:
        return name.for_builder()
    except DerError:
        return None


def _signature(key: PrivateKey, data: bytes) -> bytes:
    digest = signature_hash(key)
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(data)
    digest = signature_hash(key)
    assert digest is not None  # of the other kinds
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, padding.PKCS1v15(), digest)
    return key.sign(data, ec.ECDSA(digest))
