"""Private and public keys: which are allowed, how they are read, written and named.

Rules kept here:
* New keys are made by name: kubeadm's `encryptionAlgorithm` names (docs/protocol/discovery-and-join.md#files-and-waits) and Ed25519
  (RFC 8410).
* Keys that are presented may be NIST P-256, P-384 or P-521, RSA of 2048 to 8192 bits, or Ed25519. Everything else (DSA,
  secp256k1, Brainpool, Ed448, short RSA) is refused: Go's TLS and X.509 would refuse or ignore it as well.
* Private keys are written as unencrypted PKCS#8; PKCS#1 (`RSA PRIVATE KEY`) and SEC 1 (`EC PRIVATE KEY`), which kubeadm and
  openssl write, are read too. A key in an error message is named by its kind only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
    load_der_public_key,
)

from mooring.pki import pem
from mooring.pki.errors import KeyRefusedError

PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey
PublicKey: TypeAlias = ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey
SignatureHash: TypeAlias = hashes.SHA256 | hashes.SHA384 | hashes.SHA512

DEFAULT_ALGORITHM = "ECDSA-P256"  # a handshake with it costs a tenth of one with RSA-2048
MIN_RSA_BITS = 2048  # NIST SP 800-57: shorter is no longer 112 bits of security
MAX_RSA_BITS = 8192  # Go's crypto/tls refuses larger: verification time grows with the square

_PUBLIC_EXPONENT = 65537

ALGORITHMS: Mapping[str, Callable[[], PrivateKey]] = MappingProxyType(
    {
        "ECDSA-P256": lambda: ec.generate_private_key(ec.SECP256R1()),
        "ECDSA-P384": lambda: ec.generate_private_key(ec.SECP384R1()),
        "RSA-2048": lambda: rsa.generate_private_key(_PUBLIC_EXPONENT, 2048),
        "RSA-3072": lambda: rsa.generate_private_key(_PUBLIC_EXPONENT, 3072),
        "RSA-4096": lambda: rsa.generate_private_key(_PUBLIC_EXPONENT, 4096),
        "Ed25519": ed25519.Ed25519PrivateKey.generate,
    }
)
"""Names a new key can be asked by."""

_CURVES: Mapping[str, str] = MappingProxyType(
    {"secp256r1": "ECDSA-P256", "secp384r1": "ECDSA-P384", "secp521r1": "ECDSA-P521"}
)
_CURVE_HASHES: Mapping[str, type[SignatureHash]] = MappingProxyType(
    {"secp256r1": hashes.SHA256, "secp384r1": hashes.SHA384, "secp521r1": hashes.SHA512}
)
_PRIVATE_LABELS = ("PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY")


def generate_key(algorithm: str = DEFAULT_ALGORITHM) -> PrivateKey:
    """A new private key of the named algorithm. Raises KeyRefusedError for a name that is not in `ALGORITHMS`."""
    make = ALGORITHMS.get(algorithm)
    if make is None:
        raise KeyRefusedError(f'unknown key algorithm "{algorithm}", use one of: {", ".join(ALGORITHMS)}')
    return make()


def accepted_private_key(key: object) -> PrivateKey:
    """`key` itself if it is of an allowed kind and size. Raises KeyRefusedError."""
    if not isinstance(key, PrivateKey):
        raise KeyRefusedError("unsupported private key: use ECDSA, RSA or Ed25519")
    accepted_public_key(key.public_key())
    return key


def accepted_public_key(key: object) -> PublicKey:
    """`key` itself if it is of an allowed kind and size. Raises KeyRefusedError."""
    if isinstance(key, ec.EllipticCurvePublicKey):
        if key.curve.name not in _CURVES:
            raise KeyRefusedError(f"unsupported elliptic curve {key.curve.name}: use P-256, P-384 or P-521")
        return key
    if isinstance(key, rsa.RSAPublicKey):
        if not MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
            raise KeyRefusedError(f"an RSA key of {key.key_size} bits is not accepted: use {MIN_RSA_BITS} to 4096 bits")
        return key
    if isinstance(key, ed25519.Ed25519PublicKey):
        return key
    raise KeyRefusedError("unsupported public key: use ECDSA, RSA or Ed25519")


def algorithm_of(key: PrivateKey | PublicKey) -> str:
    """The name of a key's algorithm and size, such as `ECDSA-P256` or `RSA-2048`."""
    public = public_key_of(key)
    if isinstance(public, ec.EllipticCurvePublicKey):
        return _CURVES[public.curve.name]
    if isinstance(public, rsa.RSAPublicKey):
        return f"RSA-{public.key_size}"
    return "Ed25519"


def signature_hash(key: PrivateKey | PublicKey) -> SignatureHash | None:
    """The hash to sign X.509 with: as strong as the curve, SHA-256 with RSA, none with Ed25519 (which has its own)."""
    if isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey):
        return _CURVE_HASHES[key.curve.name]()
    if isinstance(key, rsa.RSAPrivateKey | rsa.RSAPublicKey):
        return hashes.SHA256()
    return None


def public_key_of(key: PrivateKey | PublicKey) -> PublicKey:
    """The public half of either half."""
    return key.public_key() if isinstance(key, PrivateKey) else key


def load_private_key(data: bytes) -> PrivateKey:
    """The first private key of a PEM text (PKCS#8, PKCS#1 or SEC 1, unencrypted). Raises PemError, KeyRefusedError."""
    for block in pem.blocks(data):
        if block.label in _PRIVATE_LABELS:
            try:
                key = load_der_private_key(block.der, password=None)
            except pem.UNPARSABLE:
                raise KeyRefusedError("the private key cannot be parsed") from None
            return accepted_private_key(key)
        if block.label == "ENCRYPTED PRIVATE KEY":
            raise KeyRefusedError("the private key is encrypted: write it without a passphrase")
    raise KeyRefusedError("the text holds no private key in PEM form")


def load_public_keys(data: bytes) -> tuple[PublicKey, ...]:
    """The public keys of a PEM text: `PUBLIC KEY`, `RSA PUBLIC KEY`, certificates, and the public halves of private keys,
    as `--service-account-key-file` accepts them (docs/protocol/service-account-tokens.md#keys-and-flags). Raises PemError,
    KeyRefusedError."""
    found: list[PublicKey] = []
    for block in pem.blocks(data):
        try:
            if block.label in ("PUBLIC KEY", "RSA PUBLIC KEY"):
                found.append(accepted_public_key(load_der_public_key(block.der)))
            elif block.label in _PRIVATE_LABELS:
                # unchecked: proving a long RSA key takes seconds, and its private half is not used here
                private = load_der_private_key(block.der, password=None, unsafe_skip_rsa_key_validation=True)
                found.append(accepted_private_key(private).public_key())
            elif block.label == pem.CERTIFICATE:
                found.append(accepted_public_key(x509.load_der_x509_certificate(block.der).public_key()))
        except pem.UNPARSABLE:
            raise KeyRefusedError(f"the PEM block {block.label} cannot be parsed") from None
    if not found:
        raise KeyRefusedError("the text holds no public key in PEM form")
    return tuple(found)


def private_key_pem(key: PrivateKey) -> bytes:
    """The key as unencrypted PKCS#8 PEM. This is a secret: write it only where keys are kept."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def public_key_pem(key: PrivateKey | PublicKey) -> bytes:
    """The public half as a `PUBLIC KEY` PEM block."""
    return pem.encode("PUBLIC KEY", public_key_der(key))


def public_key_der(key: PrivateKey | PublicKey) -> bytes:
    """SubjectPublicKeyInfo (PKIX) of the public half."""
    return public_key_of(key).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def public_key_fingerprint(key: PrivateKey | PublicKey) -> str:
    """Lower-case hex SHA-256 of the SubjectPublicKeyInfo: what a pin states about a CA."""
    return hashlib.sha256(public_key_der(key)).hexdigest()
