"""Certificates and CRLs whose names keep their bytes, also where the library would write others.

Rules kept here: clients find an issuer by the bytes of its name. The library encodes a name again, and refuses some that
Go reads, such as Latin-1 in a T61String. Then it signs with a name in its place, which is exchanged before the key signs again.
"""

from __future__ import annotations

from collections.abc import Callable

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

from mooring.pki.keys import PrivateKey, signature_hash
from mooring.pki.x509.encoding import der
from mooring.pki.x509.encoding.der import DerError
from mooring.pki.x509.encoding.distinguishedname import DistinguishedName

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
