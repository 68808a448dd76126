"""Certificates and requests in forms that the library writes to nobody, as other programs make them.

Rules kept here: a certificate is issued by the library and taken apart into the elements of its signed part. A test exchanges some
of them, and the issuer signs again. Nothing is shared with Mooring's reader but the header of an element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from mooring.pki import pem
from mooring.pki.keys import PrivateKey, generate_key, signature_hash
from mooring.pki.x509 import der
from mooring.pki.x509.der import encoded
from tests.support.testca import ThrowawayCA

UTF8, PRINTABLE, T61, IA5, BMP, NUMERIC, UNIVERSAL = 0x0C, 0x13, 0x14, 0x16, 0x1E, 0x12, 0x1C
COMMON_NAME, ORGANIZATION, STATE = "550403", "55040a", "550408"
TRUE, FALSE = b"\x01\x01\xff", b"\x01\x01\x00"
SEQUENCE, SET = der.SEQUENCE, der.SET
CA_TRUE = encoded(SEQUENCE, TRUE)
Edit = Callable[[list[bytes]], list[bytes]]


def oid(dotted_or_hex: str) -> bytes:
    """Return an OBJECT IDENTIFIER, of dotted numbers or of the hex of its content."""
    if "." not in dotted_or_hex:
        return encoded(der.OID, bytes.fromhex(dotted_or_hex))
    name = x509.Name([x509.NameAttribute(x509.ObjectIdentifier(dotted_or_hex), "x")]).public_bytes()
    return next(iter(der.only(name, SEQUENCE).fields().next(SET).fields().next(SEQUENCE).fields())).encoding


def attribute(kind: str, tag: int, value: bytes) -> bytes:
    return encoded(SEQUENCE, oid(kind), encoded(tag, value))


def name(*rdns: bytes) -> bytes:
    """Return a name of attributes, each an RDN of its own."""
    return encoded(SEQUENCE, *(encoded(SET, one) for one in rdns))


def extension(kind: str, value: bytes, critical: bytes = b"") -> bytes:
    """Return an extension. `critical` is the encoding of the flag, which may be left out."""
    return encoded(SEQUENCE, oid(kind), critical, encoded(der.OCTET_STRING, value))


@dataclass(frozen=True)
class Foreign:
    """DER of a certificate that need not be readable, and the key in it."""

    der: bytes
    key: PrivateKey

    @property
    def pem(self) -> bytes:
        return pem.encode(pem.CERTIFICATE, self.der)

    @property
    def parts(self) -> list[bytes]:
        """Version, serial number, algorithm, issuer, validity, subject, key, and what follows."""
        signed = der.only(self.der, SEQUENCE).fields().next(SEQUENCE)
        return [one.encoding for one in signed.fields()]


VERSION, SERIAL, ALGORITHM, ISSUER, VALIDITY, SUBJECT, KEY, EXTENSIONS = range(8)


CLIENT_AUTH = extension("551d25", encoded(SEQUENCE, oid("1.3.6.1.5.5.7.3.2")))
EXAMPLE = name(attribute(ORGANIZATION, T61, "Société Exemple".encode("latin-1")), attribute(COMMON_NAME, UTF8, b"root"))
"""Name of a CA in Latin-1."""
JOERG = name(
    attribute(ORGANIZATION, T61, "Bücher".encode("latin-1")), attribute(COMMON_NAME, T61, "Jörg".encode("latin-1"))
)
"""Name of a user and a group in Latin-1."""


def plain(ca: ThrowawayCA, subject: str = "jane", *groups: str) -> Foreign:
    """Return a certificate for clients, as it is usual."""
    pair = ca.client(subject, *groups)
    return Foreign(pair.der, pair.key)


def edited(
    issuer_key: PrivateKey, start: Foreign, changes: Mapping[int, bytes | None], key: PrivateKey | None = None
) -> Foreign:
    """Return the certificate with other elements (None: left out), signed again."""
    parts = start.parts + [b""] * (EXTENSIONS + 1 - len(start.parts))
    for place, encoding in changes.items():
        parts[place] = encoding or b""
    return Foreign(signed(encoded(SEQUENCE, *parts), issuer_key, parts[ALGORITHM]), key or start.key)


def extensions(*every: bytes) -> bytes:
    return encoded(der.CONSTRUCTED | 3, encoded(SEQUENCE, *every))


def signed(data: bytes, key: PrivateKey, algorithm: bytes) -> bytes:
    """Return the signed structure, by an ECDSA key."""
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    digest = signature_hash(key)
    assert digest is not None
    return encoded(SEQUENCE, data, algorithm, encoded(der.BIT_STRING, b"\0", key.sign(data, ec.ECDSA(digest))))


def root(subject: bytes, *more: bytes, constraints: bytes = CA_TRUE, now: datetime | None = None) -> Foreign:
    """Return a CA of this name that signed itself, with further extensions."""
    ca = ThrowawayCA(now=now)
    start = Foreign(ca.certificate.der, ca.key)
    own = extensions(extension("551d13", constraints, TRUE), *more)
    return edited(ca.key, start, {ISSUER: subject, SUBJECT: subject, EXTENSIONS: own})


def issued(ca: Foreign, subject: bytes, every: Sequence[bytes], now: datetime | None = None) -> Foreign:
    """Return a certificate below such a CA."""
    start = plain(ThrowawayCA(now=now))
    changes = {ISSUER: ca.parts[SUBJECT], SUBJECT: subject, EXTENSIONS: extensions(*every)}
    return edited(ca.key, start, changes)


def request(subject: bytes, *attributes: bytes, key: PrivateKey | None = None, info: bytes = b"") -> bytes:
    """Return a PEM request of this name with these attributes. `info` is another encoding of the key."""
    own = key or generate_key()
    made = x509.CertificateSigningRequestBuilder(x509.Name([])).sign(own, signature_hash(own))
    whole = der.only(made.public_bytes(Encoding.DER), SEQUENCE).fields()
    parts = [one.encoding for one in whole.next(SEQUENCE).fields()]
    data = encoded(SEQUENCE, parts[0], subject, info or parts[2], encoded(der.CONSTRUCTED, *attributes))
    return pem.encode(pem.CERTIFICATE_REQUEST, signed(data, own, whole.next(SEQUENCE).encoding))
