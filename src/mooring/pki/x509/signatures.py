"""Signatures of certificates, requests and CRLs, and the public keys that verify them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import load_der_public_key
from cryptography.x509.oid import ObjectIdentifier, SignatureAlgorithmOID

from mooring.pki.x509 import der
from mooring.pki.x509.der import DerError

# Signatures of certificates, requests and CRLs: their algorithm, and whether a key made them.
#
# Rules kept here (Go's `getSignatureAlgorithmFromAI` and `checkSignature`):
# * RSA with PKCS #1 v1.5 or PSS, ECDSA and Ed25519. PSS is accepted in three forms: SHA-256, SHA-384 or SHA-512 for the message and
#   for MGF1, with a salt as long as the hash.
# * Hashes of the SHA-2 family with 256 bits and more are strong. SHA-1 is known for requests, as in Go; MD5 is not.
# * Curves are those of NIST, P-224 among them: it signs as a root, and nothing below it is accepted with such a key.
# * A signature is a whole number of octets: with unused bits it had a second encoding, and its certificate a second fingerprint.

StrongHash = hashes.SHA256 | hashes.SHA384 | hashes.SHA512
Kind = type[rsa.RSAPublicKey] | type[ec.EllipticCurvePublicKey] | type[ed25519.Ed25519PublicKey]

_RSA: Mapping[ObjectIdentifier, type[StrongHash]] = {
    SignatureAlgorithmOID.RSA_WITH_SHA256: hashes.SHA256,
    SignatureAlgorithmOID.RSA_WITH_SHA384: hashes.SHA384,
    SignatureAlgorithmOID.RSA_WITH_SHA512: hashes.SHA512,
}
_ECDSA: Mapping[ObjectIdentifier, type[StrongHash]] = {
    SignatureAlgorithmOID.ECDSA_WITH_SHA256: hashes.SHA256,
    SignatureAlgorithmOID.ECDSA_WITH_SHA384: hashes.SHA384,
    SignatureAlgorithmOID.ECDSA_WITH_SHA512: hashes.SHA512,
}
_CURVES = (ec.SECP224R1, ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
_NULL = b"\5\0"


def _parameters_of_pss(oid: str, size: int) -> frozenset[bytes]:
    """Return the encodings of PSS with this hash (RFC 4055 3.1), with and without the NULL of the hash."""
    digest, mgf1 = der.encoded(der.OID, bytes.fromhex(oid)), der.encoded(der.OID, bytes.fromhex("2a864886f70d010108"))
    hashed = [der.encoded(der.SEQUENCE, digest, null) for null in (b"", _NULL)]
    salt = der.encoded(der.CONSTRUCTED | 2, der.encoded(der.INTEGER, bytes((size,))))
    trailer = der.encoded(der.CONSTRUCTED | 3, der.encoded(der.INTEGER, b"\1"))
    return frozenset(
        der.encoded(
            der.SEQUENCE,
            der.encoded(der.CONSTRUCTED, of_message),
            der.encoded(der.CONSTRUCTED | 1, der.encoded(der.SEQUENCE, mgf1, of_mask)),
            salt,
            end,
        )
        for of_message in hashed
        for of_mask in hashed
        for end in (b"", trailer)
    )


_PSS: Mapping[type[StrongHash], frozenset[bytes]] = {
    hashes.SHA256: _parameters_of_pss("608648016503040201", 32),
    hashes.SHA384: _parameters_of_pss("608648016503040202", 48),
    hashes.SHA512: _parameters_of_pss("608648016503040203", 64),
}


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An algorithm that is known: its hash (None: Ed25519, which has its own), and what pads an RSA signature."""

    kind: Kind
    digest: StrongHash | hashes.SHA1 | None = None
    padded: padding.PKCS1v15 | padding.PSS | None = None

    @property
    def is_strong(self) -> bool:
        """False for SHA-1, which is good enough only where a signature proves no more than the possession of a key."""
        return not isinstance(self.digest, hashes.SHA1)


_SHA1 = hashes.SHA1()  # noqa: S303 - of requests alone, where it proves no more than the possession of the key
_WEAK: Mapping[ObjectIdentifier, Algorithm] = {
    SignatureAlgorithmOID.RSA_WITH_SHA1: Algorithm(rsa.RSAPublicKey, _SHA1, padding.PKCS1v15()),
    SignatureAlgorithmOID.ECDSA_WITH_SHA1: Algorithm(ec.EllipticCurvePublicKey, _SHA1),
}


def signature_algorithm(identifier: der.Element) -> Algorithm | None:
    """Return the algorithm of an AlgorithmIdentifier; None for one that is not known. Raises DerError."""
    fields = identifier.fields()
    oid = der.object_identifier(fields.next(der.OID))
    parameters = fields.any().encoding if fields else b""
    return _algorithm(oid, parameters)


def _algorithm(oid: ObjectIdentifier, parameters: bytes) -> Algorithm | None:
    if oid in _RSA:
        return Algorithm(rsa.RSAPublicKey, _RSA[oid](), padding.PKCS1v15())
    if oid in _ECDSA:
        return Algorithm(ec.EllipticCurvePublicKey, _ECDSA[oid]())
    if oid in _WEAK:
        return _WEAK[oid]
    if oid == SignatureAlgorithmOID.ED25519 and not parameters:
        return Algorithm(ed25519.Ed25519PublicKey)
    if oid == SignatureAlgorithmOID.RSASSA_PSS:
        digest = next((one() for one, encodings in _PSS.items() if parameters in encodings), None)
        if digest is not None:
            return Algorithm(rsa.RSAPublicKey, digest, padding.PSS(padding.MGF1(digest), digest.digest_size))
    return None


def signature_of(element: der.Element) -> bytes:
    """Return the octets of a signature. Raises DerError for one with unused bits."""
    octets, unused = der.bits(element)
    if unused:
        raise DerError("the signature is not a whole number of octets")
    return octets


def is_signed(data: bytes, signature: bytes, algorithm: Algorithm | None, key: object) -> bool:
    """Return whether the holder of `key` signed `data`. False for an algorithm that is not known, and for another kind of key."""
    if algorithm is None or not isinstance(key, algorithm.kind):
        return False
    digest, padded = algorithm.digest, algorithm.padded
    try:
        if digest is None:
            assert isinstance(key, ed25519.Ed25519PublicKey)
            key.verify(signature, data)
        elif padded is None:
            assert isinstance(key, ec.EllipticCurvePublicKey)
            if not isinstance(key.curve, _CURVES):
                return False
            key.verify(signature, data, ec.ECDSA(digest))
        else:
            assert isinstance(key, rsa.RSAPublicKey)
            key.verify(signature, data, padded, digest)
    except (InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


# Public keys by their SubjectPublicKeyInfo, in the encodings that Go reads (`parsePublicKey`).
#
# Rules kept here:
# * One key has one encoding. OpenSSL reads others, which Go refuses, so that no client in Go knows such a certificate: compressed
#   points and explicit parameters of a curve, RSA without the NULL, id-RSASSA-PSS.
# * Keys of ML-DSA (FIPS 204, RFC 9881) are refused by name: a kubelet may be told to make one, and no client verifies it before
#   Kubernetes 1.38.
# * The exponent of an RSA key has at most 31 bits. With one as long as the key a signature costs a hundred times as much to
#   check.

_RSA_KEY = ObjectIdentifier("1.2.840.113549.1.1.1")
_PSS_KEY = ObjectIdentifier("1.2.840.113549.1.1.10")
_EC = ObjectIdentifier("1.2.840.10045.2.1")
_ML_DSA = {
    ObjectIdentifier("2.16.840.1.101.3.4.3.17"): "ML-DSA-44",
    ObjectIdentifier("2.16.840.1.101.3.4.3.18"): "ML-DSA-65",
    ObjectIdentifier("2.16.840.1.101.3.4.3.19"): "ML-DSA-87",
}
_UNCOMPRESSED = b"\4"
_LARGEST_EXPONENT = 2**31 - 1


def load_public_key(info: bytes) -> PublicKeyTypes:
    """Return the key. Raises DerError, whose text names what Go refuses, and what else `keys.UNREADABLE` has."""
    fields = der.only(info, der.SEQUENCE).fields()
    algorithm = fields.next(der.SEQUENCE).fields()
    kind = der.object_identifier(algorithm.next(der.OID))
    parameters = algorithm.any() if algorithm else None
    octets, _ = der.bits(fields.next(der.BIT_STRING))
    if kind == _PSS_KEY:
        raise DerError("a key of the type id-RSASSA-PSS is not accepted: use rsaEncryption")
    if kind in _ML_DSA:
        raise DerError(f"an {_ML_DSA[kind]} key is not accepted: use ECDSA, RSA or Ed25519")
    if kind == _RSA_KEY:
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
