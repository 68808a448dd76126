"""Public keys by their SubjectPublicKeyInfo, in the encodings that Go reads (`parsePublicKey`).

Rules kept here:
* One key has one encoding. OpenSSL reads others, which Go refuses, so that no client in Go knows such a certificate: compressed
  points and explicit parameters of a curve, RSA without the NULL, id-RSASSA-PSS.
* Keys of ML-DSA (FIPS 204, RFC 9881) are refused by name: a kubelet may be told to make one, and no client verifies it before
  Kubernetes 1.38.
* The exponent of an RSA key has at most 31 bits. With one as long as the key a signature costs a hundred times as much to check.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import load_der_public_key
from cryptography.x509.oid import ObjectIdentifier

from mooring.pki.x509.encoding import der
from mooring.pki.x509.encoding.der import DerError

_RSA = ObjectIdentifier("1.2.840.113549.1.1.1")
_PSS = ObjectIdentifier("1.2.840.113549.1.1.10")
_EC = ObjectIdentifier("1.2.840.10045.2.1")
_ML_DSA = {
    ObjectIdentifier("2.16.840.1.101.3.4.3.17"): "ML-DSA-44",
    ObjectIdentifier("2.16.840.1.101.3.4.3.18"): "ML-DSA-65",
    ObjectIdentifier("2.16.840.1.101.3.4.3.19"): "ML-DSA-87",
}
_NULL = b"\5\0"
_UNCOMPRESSED = b"\4"
_LARGEST_EXPONENT = 2**31 - 1


def load_public_key(info: bytes) -> PublicKeyTypes:
    """Return the key. Raises DerError, whose text names what Go refuses, and what else `keys.UNREADABLE` has."""
    fields = der.only(info, der.SEQUENCE).fields()
    algorithm = fields.next(der.SEQUENCE).fields()
    kind = der.object_identifier(algorithm.next(der.OID))
    parameters = algorithm.any() if algorithm else None
    octets, _ = der.bits(fields.next(der.BIT_STRING))
    if kind == _PSS:
        raise DerError("a key of the type id-RSASSA-PSS is not accepted: use rsaEncryption")
    if kind in _ML_DSA:
        raise DerError(f"an {_ML_DSA[kind]} key is not accepted: use ECDSA, RSA or Ed25519")
    if kind == _RSA:
        _check_rsa(parameters, octets)
    if kind == _EC:
        _check_point(parameters, octets)
    return load_der_public_key(info)


def _check_rsa(parameters: der.Element | None, octets: bytes) -> None:
    if parameters is None or parameters.encoding != _NULL:
        raise DerError("an RSA key without the parameter NULL is not accepted")
    numbers = der.Fields(octets).next(der.SEQUENCE).fields()
    modulus, exponent = (der.integer(numbers.next(der.INTEGER)) for _ in range(2))
    if modulus <= 0 or not 0 < exponent <= _LARGEST_EXPONENT:
        raise DerError("an RSA key with a negative number, or with an exponent above 31 bits, is not accepted")


def _check_point(parameters: der.Element | None, octets: bytes) -> None:
    if parameters is None or parameters.tag != der.OID:
        raise DerError("an elliptic curve with explicit parameters is not accepted: name the curve")
    if octets[:1] != _UNCOMPRESSED:
        raise DerError("a compressed point of an elliptic curve is not accepted: write the key uncompressed")
