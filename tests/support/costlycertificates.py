"""Certificates, chains and requests that a stranger makes so that reading them costs much, of the greatest size that is read.

Rules kept here: each form is a sentence. `chain` gives it a leaf of 64 KiB and, where `above` is true, an intermediate that issued
the leaf, with which the chain has as many octets as a chain may have. Nothing is cut to what a limit of elements lets through, but
for `WITHIN`: those have the elements and the octets that are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType

from mooring import base64url
from mooring.pki import pem
from mooring.pki.x509 import der
from mooring.pki.x509.der import CONSTRUCTED, SEQUENCE, SET, encoded
from mooring.pki.x509.verify import MAX_CERTIFICATE_BYTES, MAX_INTERMEDIATE_BYTES
from tests.support.rawcertificate import (
    BMP,
    COMMON_NAME,
    EXTENSIONS,
    ISSUER,
    PRINTABLE,
    SUBJECT,
    T61,
    TRUE,
    UTF8,
    Foreign,
    attribute,
    edited,
    extension,
    extensions,
    name,
    oid,
    plain,
    request,
)
from tests.support.testca import ThrowawayCA

ALTERNATIVE_NAMES, CONSTRAINTS, USAGES, POLICIES, MAPPINGS = "551d11", "551d1e", "551d25", "551d20", "551d21"
EXTENSION_REQUEST = "2a864886f70d01090e"
ROOM = 1024
"""Octets of a certificate beside the part that a form makes large."""
Parts = Mapping[int, bytes]


def _filled(one: bytes, octets: int, most: int) -> bytes:
    """Return as many of these as fit, `most` at most."""
    return one * min(octets // len(one), most)


def _numbered(octets: int, most: int, make: Callable[[int], bytes]) -> bytes:
    """Return as many different ones as fit, `most` at most."""
    found, size = list[bytes](), 0
    for number in range(most):
        one = make(number)
        size += len(one)
        if size > octets:
            break
        found.append(one)
    return b"".join(found)


def _names(one: bytes) -> Callable[[int, int], Parts]:
    return lambda octets, most: _extension(ALTERNATIVE_NAMES, encoded(SEQUENCE, _filled(one, octets, most)))


def _extension(kind: str, value: bytes) -> Parts:
    return {EXTENSIONS: extensions(extension(kind, value))}


def _name(place: int, one: bytes) -> Callable[[int, int], Parts]:
    return lambda octets, most: {place: encoded(SEQUENCE, _filled(one, octets, most))}


def _text(place: int, tag: int, octet: bytes) -> Callable[[int, int], Parts]:
    return lambda octets, most: {place: name(attribute(COMMON_NAME, tag, octet * (octets // len(octet) - 16)))}


def _number(number: int) -> bytes:
    """Return the content of an object identifier of as many numbers as its octets allow."""
    return b"\x2a" + number.to_bytes(3, "big").translate(_BELOW_128)


_BELOW_128 = bytes(one & 0x7F for one in range(256))
_LONGEST = 58

FORMS: Mapping[str, Callable[[int, int], Parts]] = MappingProxyType(
    {
        "alternative names that are empty URIs": _names(b"\x86\0"),
        "alternative names that are URIs with a host": _names(encoded(0x86, b"a://b.c:1/")),
        "alternative names that are empty DNS names": _names(b"\x82\0"),
        "alternative names that are empty email addresses": _names(b"\x81\0"),
        "alternative names that are IPv4 addresses": _names(encoded(0x87, b"\x0a\0\0\1")),
        "alternative names that are IPv6 addresses": _names(encoded(0x87, bytes(15) + b"\1")),
        "alternative names of a type that is not read": _names(b"\x88\0"),
        "one alternative name that is a long URI": lambda octets, most: _extension(
            ALTERNATIVE_NAMES, encoded(SEQUENCE, encoded(0x86, b"a://" + b"b." * (octets // 2 - 9) + b"c/"))
        ),
        "one alternative name that is a URI with a long user": lambda octets, most: _extension(
            ALTERNATIVE_NAMES, encoded(SEQUENCE, encoded(0x86, b"a://" + b"%41" * (octets // 3 - 9) + b"@"))
        ),
        "one alternative name that is a long relative URI": lambda octets, most: _extension(
            ALTERNATIVE_NAMES, encoded(SEQUENCE, encoded(0x86, b"%41/" * (octets // 4 - 9)))
        ),
        "a subject of empty RDNs": _name(SUBJECT, encoded(SET)),
        "an issuer of empty RDNs": _name(ISSUER, encoded(SET)),
        "an issuer of RDNs with one attribute": _name(ISSUER, encoded(SET, attribute(COMMON_NAME, UTF8, b""))),
        "an issuer of one RDN with all attributes": lambda octets, most: {
            ISSUER: encoded(SEQUENCE, encoded(SET, _filled(attribute(COMMON_NAME, UTF8, b""), octets, most)))
        },
        "an issuer of attributes whose kinds are all different": lambda octets, most: {
            ISSUER: encoded(
                SEQUENCE,
                encoded(
                    SET,
                    _numbered(octets, most, lambda one: attribute(_number(one).hex() + "01" * _LONGEST, UTF8, b"a")),
                ),
            )
        },
        "an issuer that is one long UTF8String": _text(ISSUER, UTF8, b"\\"),
        "an issuer that is one long PrintableString": _text(ISSUER, PRINTABLE, b"+"),
        "an issuer that is one long T61String": _text(ISSUER, T61, b"\xff"),
        "an issuer that is one long BMPString": _text(ISSUER, BMP, b"\0\n"),
        "a subject that is one long UTF8String": _text(SUBJECT, UTF8, b"\0"),
        "extensions that are not known": lambda octets, most: {
            EXTENSIONS: extensions(_numbered(octets, most, lambda one: extension(_number(one).hex(), b"")))
        },
        "extensions that are not known, critical, of long kinds": lambda octets, most: {
            EXTENSIONS: extensions(
                _numbered(octets, most, lambda one: extension(_number(one).hex() + "01" * _LONGEST, b"", TRUE))
            )
        },
        "extensions that are all the same": lambda octets, most: {
            EXTENSIONS: extensions(_filled(extension("2a03", b""), octets, most))
        },
        "name constraints that permit DNS names": lambda octets, most: _extension(
            CONSTRAINTS,
            encoded(SEQUENCE, encoded(CONSTRUCTED, _filled(encoded(SEQUENCE, encoded(0x82, b"a")), octets, most))),
        ),
        "name constraints that permit networks": lambda octets, most: _extension(
            CONSTRAINTS,
            encoded(SEQUENCE, encoded(CONSTRUCTED, _filled(encoded(SEQUENCE, encoded(0x87, bytes(8))), octets, most))),
        ),
        "name constraints that exclude one long email address": lambda octets, most: _extension(
            CONSTRAINTS,
            encoded(
                SEQUENCE, encoded(CONSTRUCTED | 1, encoded(SEQUENCE, encoded(0x81, b"a." * (octets // 2 - 9) + b"a@b")))
            ),
        ),
        "extended key usages": lambda octets, most: _extension(
            USAGES, encoded(SEQUENCE, _filled(oid("2a03"), octets, most))
        ),
        "extended key usages that are all different and long": lambda octets, most: _extension(
            USAGES, encoded(SEQUENCE, _numbered(octets, most, lambda one: oid(_number(one).hex() + "01" * _LONGEST)))
        ),
        "policies": lambda octets, most: _extension(
            POLICIES,
            encoded(SEQUENCE, _numbered(octets, most, lambda one: encoded(SEQUENCE, oid(_number(one).hex())))),
        ),
        "one policy of a long kind": lambda octets, most: _extension(
            POLICIES, encoded(SEQUENCE, encoded(SEQUENCE, oid("01" * (octets - 16))))
        ),
        "policy mappings": lambda octets, most: _extension(
            MAPPINGS,
            encoded(
                SEQUENCE, _numbered(octets, most, lambda one: encoded(SEQUENCE, oid(_number(one).hex()), oid("2a03")))
            ),
        ),
    }
)
"""What is large, by the parts of a certificate for the octets and the number of items that may be used."""

ALL = 1 << 20
"""More items than octets."""


@cache
def _stranger() -> ThrowawayCA:
    return ThrowawayCA(now=None)


@cache
def chain(form: str, *, above: bool = False, most: int = ALL) -> tuple[bytes, ...]:
    """Return the chain of a form, whose CA no bundle has. `most`: items of each certificate."""
    make, stranger = FORMS[form], _stranger()
    start = plain(stranger, "system:node:n1", "system:nodes")
    large = edited(stranger.key, start, make(MAX_CERTIFICATE_BYTES - ROOM, most))
    if not above:
        return (large.der,)
    middle = edited(
        stranger.key, Foreign(stranger.certificate.der, stranger.key), make(MAX_INTERMEDIATE_BYTES - ROOM, most)
    )
    return large.der, middle.der


def certificate_request(form: str, octets: int, most: int = ALL) -> bytes:
    """Return the PEM request of a form, with this room for what is large."""
    if form in ATTRIBUTES:
        return request(name(attribute(COMMON_NAME, UTF8, b"jane")), ATTRIBUTES[form](octets, most))
    parts = FORMS[form](octets, most)
    subject = parts.get(SUBJECT) or parts.get(ISSUER) or name(attribute(COMMON_NAME, UTF8, b"jane"))
    if EXTENSIONS not in parts:
        return request(subject)
    asked = der.only(parts[EXTENSIONS], CONSTRUCTED | 3).content
    return request(subject, encoded(SEQUENCE, oid(EXTENSION_REQUEST), encoded(SET, asked)))


def bundle(form: str, most: int, octets: int) -> bytes:
    """Return PEM text of a certificate of a form, as often as fits, once at least. `most`: items of each."""
    text = pem.encode(pem.CERTIFICATE, chain(form, most=most)[0])
    return text * max(1, octets // len(text))


def labels(count: int, *, different: bool = True) -> bytes:
    """Return PEM text of empty blocks, each with a label of its own."""
    names = (b"A" + str(number if different else 0).zfill(5).encode() for number in range(count))
    return b"".join(b"-----BEGIN %b-----\n-----END %b-----\n" % (name, name) for name in names)


def key_set(kind: str, length: int) -> bytes:
    """Return a JSON Web Key Set of one key with a number of so many characters, most of them zeros."""
    number = ("A" * length + base64url.encode((1 << 2047 | 1).to_bytes(258, "big")))[-length:]
    key = {"RSA": {"n": number, "e": "AQAB"}, "EC": {"crv": "P-256", "x": number, "y": "AQAB"}}[kind]
    return json.dumps({"keys": [{"kty": kind, **key}]}).encode()


ATTRIBUTES: Mapping[str, Callable[[int, int], bytes]] = MappingProxyType(
    {
        "attributes that are empty": lambda octets, most: _filled(encoded(SEQUENCE), octets, most),
        "attributes of another type": lambda octets, most: _filled(encoded(SET), octets, most),
        "attributes without a value": lambda octets, most: _filled(
            encoded(SEQUENCE, oid("2a03"), encoded(SET)), octets, most
        ),
        "an attribute of many values": lambda octets, most: encoded(
            SEQUENCE, oid("2a03"), encoded(SET, _filled(encoded(SET), octets, most))
        ),
    }
)
"""What only a request has."""
