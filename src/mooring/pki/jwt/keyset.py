"""Key sets: the public keys that verify signed tokens, and the one verification of a signature (RFC 7515, RFC 7518).

Rules kept here (docs/protocol/openid-connect.md, docs/protocol/service-account-tokens.md#bound-tokens):
* Nine algorithms and no other: RS, PS and ES with 256, 384 and 512. `none` and HMAC do not exist here, so a public key is never
  used as a shared secret.
* A key verifies only with the algorithms that the key set gives it.
* A `kid` in the token selects the keys of that id. Without one, the keys of the token's algorithm are tried, the first MAX_TRIED.
  An empty `kid` is none, as in go-jose: Kubernetes before 1.16 wrote it into every service account token.
* Kubernetes names a service account key by base64url(SHA-256(SubjectPublicKeyInfo)), and its algorithm follows from its type:
  RS256 for RSA; ES256, ES384, ES512 for P-256, P-384, P-521.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey
from joserfc.jws import JWSRegistry

from mooring import base64url
from mooring.pki.errors import KeyRefusedError, TokenRefusedError
from mooring.pki.keys import PrivateKey, PublicKey, public_key_der

MAX_TRIED = 16
"""Keys tried for a token without `kid`. Each costs up to 0.1 ms of CPU time, before the sender is known."""
EC_ALGORITHMS: Mapping[str, str] = MappingProxyType({"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"})
"""The one algorithm of each curve."""


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """One public key and the algorithms that it may verify. `kid` is None for a key without an id."""

    kid: str | None
    algorithms: tuple[str, ...]
    key: ECKey | RSAKey


@dataclass(frozen=True, slots=True)
class KeySet:
    """Public keys of one issuer; an empty set verifies nothing. `digest` differs when the published document differs."""

    keys: tuple[VerificationKey, ...]
    digest: bytes = b""

    def verify(self, token: str, header: Mapping[str, Any]) -> None:
        """Raise TokenRefusedError unless one of these keys signed `token`.

        The token has three segments, and `header`, its decoded header, has passed `check_header`.
        """
        algorithm = header["alg"]
        kid = header.get("kid")
        candidates = [key for key in self.keys if key.kid == kid] if kid else list(self.keys)
        if not candidates:
            raise TokenRefusedError("unknown-key", "the token names a key that is not known here")
        candidates = [key for key in candidates if algorithm in key.algorithms]
        if not candidates:
            raise TokenRefusedError("unsupported-algorithm", f"no key of the issuer is for {algorithm}")
        signed, _, encoded_signature = token.rpartition(".")
        try:
            signature = base64url.decode(encoded_signature)
        except ValueError:
            raise TokenRefusedError("malformed", "the token's signature is not base64url") from None
        # Bits behind the last octet must be zero: a token has one text.
        is_canonical = base64url.encode(signature) == encoded_signature
        tried = candidates[:MAX_TRIED] if is_canonical else []
        if not any(_verifies(algorithm, signed.encode(), signature, key.key) for key in tried):
            raise TokenRefusedError("bad-signature", "no key of the issuer verifies the token's signature")


def _verifies(algorithm: str, signed: bytes, signature: bytes, key: ECKey | RSAKey) -> bool:
    try:
        return JWSRegistry.algorithms[algorithm].verify(signed, signature, key)
    except (JoseError, ValueError):
        return False


def key_set_of(public_keys: Iterable[PublicKey]) -> KeySet:
    """Return the key set of service account keys. Raises KeyRefusedError for a key of a type that does not sign tokens."""
    return KeySet(tuple(VerificationKey(key_id(key), (algorithm_of(key),), jwk_of(key)) for key in public_keys))


def key_id(key: PrivateKey | PublicKey) -> str:
    """Return the `kid` that Kubernetes gives a key."""
    return base64url.encode(hashlib.sha256(public_key_der(key)).digest())


def jwk_of(key: PrivateKey | PublicKey) -> ECKey | RSAKey:
    """Return the key as a JWK. Raises KeyRefusedError for Ed25519, which service accounts never use."""
    if isinstance(key, rsa.RSAPrivateKey | rsa.RSAPublicKey):
        return RSAKey.import_key(key)
    if isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey):
        return ECKey.import_key(key)
    raise KeyRefusedError("service account tokens are signed with ECDSA or RSA keys, not with Ed25519")


def algorithm_of(key: PrivateKey | PublicKey) -> str:
    """Return the JWS algorithm that a service account key signs with. Raises KeyRefusedError for Ed25519."""
    jwk = jwk_of(key)
    return "RS256" if isinstance(jwk, RSAKey) else EC_ALGORITHMS[jwk.curve_name]
