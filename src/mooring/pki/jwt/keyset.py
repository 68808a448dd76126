"""Key sets: the public keys that verify signed tokens, their documents, and the discovery document of an issuer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey
from joserfc.jws import JWSRegistry

from mooring import base64url
from mooring.pki.errors import KeyRefusedError, TokenRefusedError
from mooring.pki.keys import MAX_RSA_BITS, PrivateKey, PublicKey, accepted_public_key, public_key_der

# JSON Web Key Set documents, read and published, and the OpenID discovery document of service account tokens.
#
# Rules kept here (docs/protocol/openid-connect.md, docs/protocol/service-account-tokens.md#issuer-discovery; RFC 7517; OpenID
# Connect Discovery 1.0, section 3):
# * A key of a document verifies only what its type allows (an EC key: the one algorithm of its curve), what its `alg` says if it
#   has one, and only if `use` is absent or `sig` and `key_ops` absent or with `verify`. Keys of other types and uses, and keys of
#   refused sizes, are ignored: key sets hold encryption keys too. In these members and in `kid`, null and an empty value are absent
#   ones, as in go-jose.
# * The number of keys is bounded, and so are modulus and exponent, so that verifying stays cheap whatever the issuer publishes.
# * Published keys are public halves with `use: sig`, `kid`, `alg`. Each key is listed once, in the order given.
# * The documents are served only when the first issuer is an https URL without query and fragment.

# Key sets: the public keys that verify signed tokens, and the one verification of a signature (RFC 7515, RFC 7518).
#
# Rules kept here (docs/protocol/openid-connect.md, docs/protocol/service-account-tokens.md#bound-tokens):
# * Nine algorithms and no other: RS, PS and ES with 256, 384 and 512. `none` and HMAC do not exist here, so a public key is never
#   used as a shared secret.
# * A key verifies only with the algorithms that the key set gives it.
# * A `kid` in the token selects the keys of that id. Without one, the keys of the token's algorithm are tried, the first
#   MAX_TRIED. An empty `kid` is none, as in go-jose: Kubernetes before 1.16 wrote it into every service account token.
# * Kubernetes names a service account key by base64url(SHA-256(SubjectPublicKeyInfo)), and its algorithm follows from its type:
#   RS256 for RSA; ES256, ES384, ES512 for P-256, P-384, P-521.

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
        # The key decides which algorithms it verifies, and not the token (RFC 8725 3.1).
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


MAX_KEYS = 128
"""Keys of one document. The largest public providers publish about thirty."""
MAX_NUMBER = MAX_RSA_BITS // 4
"""Characters of a number of a key in base64url, half more than the largest modulus has: 256 KiB of one number took 27 ms."""
MAX_EXPONENT_BITS = 32
"""Bits of an RSA exponent. Nearly every key has 65537; Go accepts no more bits than this, and each bit makes verifying slower."""
_RSA_ALGORITHMS: tuple[str, ...] = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_EC_MEMBERS = ("kty", "crv", "x", "y")


def parse_key_set(document: bytes) -> KeySet:
    """Return the keys of a JSON Web Key Set that may verify tokens; at least one. Raises KeyRefusedError."""
    try:
        decoded = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise KeyRefusedError("the key set is not JSON") from None
    jwks = decoded.get("keys") if isinstance(decoded, dict) else None
    if not isinstance(jwks, list):
        raise KeyRefusedError("the key set has no list of keys")
    if len(jwks) > MAX_KEYS:
        raise KeyRefusedError(f"the key set has {len(jwks)} keys, more than {MAX_KEYS}")
    keys = tuple(key for key in map(_verification_key, jwks) if key is not None)
    if not keys:
        raise KeyRefusedError(f"none of the {len(jwks)} keys of the key set can verify a token")
    return KeySet(keys, hashlib.sha256(document).digest())


def _verification_key(jwk: Any) -> VerificationKey | None:
    """Return the key of one JWK, or None when the JWK is not for verifying tokens."""
    if not isinstance(jwk, dict):
        return None
    use, operations, kid, declared = (jwk.get(name) for name in ("use", "key_ops", "kid", "alg"))
    if use not in (None, "", "sig") or not isinstance(kid, str | None):
        return None
    if operations not in (None, "", []) and not (isinstance(operations, list) and "verify" in operations):
        return None
    try:
        if jwk.get("kty") == "RSA":
            key: ECKey | RSAKey = _rsa_key(jwk["n"], jwk["e"])
            possible = _RSA_ALGORITHMS
        elif jwk.get("kty") == "EC":
            key = ECKey.import_key({name: _short(jwk[name]) for name in _EC_MEMBERS})
            possible = (EC_ALGORITHMS[key.curve_name],)
        else:
            return None
    except (JoseError, KeyRefusedError, ValueError, KeyError, TypeError, AttributeError):
        # A JWK that no library can read is ignored like one of an unknown type.
        return None
    algorithms = possible if declared in (None, "") else tuple(name for name in possible if name == declared)
    return VerificationKey(kid or None, algorithms, key) if algorithms else None


def _short(number: str) -> str:
    if len(number) > MAX_NUMBER:
        raise KeyRefusedError(f"a number of more than {MAX_NUMBER} characters")
    return number


def _rsa_key(modulus: str, exponent: str) -> RSAKey:
    n, e = (int.from_bytes(base64url.decode(_short(text))) for text in (modulus, exponent))
    if e.bit_length() > MAX_EXPONENT_BITS:
        raise KeyRefusedError(f"an exponent of more than {MAX_EXPONENT_BITS} bits")
    key = rsa.RSAPublicNumbers(e, n).public_key()
    # The size before the key is kept: verifying with a long modulus is slow.
    accepted_public_key(key)
    return RSAKey.import_key(key)


def jwks_document(keys: Iterable[PublicKey]) -> dict[str, Any]:
    """Return the JSON Web Key Set of service account keys. Raises KeyRefusedError for a key that does not sign tokens."""
    by_id = {key_id(key): key for key in keys}
    return {"keys": [_published_jwk(kid, key) for kid, key in by_id.items()]}


def _published_jwk(kid: str, key: PublicKey) -> dict[str, Any]:
    return {"use": "sig", "kid": kid, "alg": algorithm_of(key), **jwk_of(key).as_dict(private=False)}


def discovery_document(issuer: str, jwks_uri: str, algorithms: Iterable[str]) -> dict[str, Any]:
    """Return the OpenID provider configuration of `issuer`; algorithms are sorted and listed once."""
    return {
        "issuer": issuer,
        "jwks_uri": jwks_uri,
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": sorted(set(algorithms)),
    }


def is_discoverable(issuer: str) -> bool:
    """Return whether the discovery document may be served for `issuer`."""
    try:
        parts = urlsplit(issuer)
    except ValueError:
        return False
    return parts.scheme == "https" and bool(parts.netloc) and "?" not in issuer and "#" not in issuer
