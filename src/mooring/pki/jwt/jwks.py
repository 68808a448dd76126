"""JSON Web Key Set documents, read and published, and the OpenID discovery document of service account tokens.

Rules kept here (docs/protocol/openid-connect.md, docs/protocol/service-account-tokens.md#issuer-discovery; RFC 7517; OpenID
Connect Discovery 1.0, section 3):
* A key of a document verifies only what its type allows (an EC key: the one algorithm of its curve), what its `alg` says if it has
  one, and only if `use` is absent or `sig` and `key_ops` absent or with `verify`. Keys of other types and uses, and keys of
  refused sizes, are ignored: key sets hold encryption keys too. In these members and in `kid`, null and an empty value are
  absent ones, as in go-jose.
* The number of keys is bounded, and so are modulus and exponent, so that verifying stays cheap whatever the issuer publishes.
* Published keys are public halves with `use: sig`, `kid`, `alg`. Each key is listed once, in the order given.
* The documents are served only when the first issuer is an https URL without query and fragment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import msgspec
from cryptography.hazmat.primitives.asymmetric import rsa
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey

from mooring import base64url
from mooring.pki.errors import KeyRefusedError
from mooring.pki.jwt.keyset import EC_ALGORITHMS, KeySet, VerificationKey, algorithm_of, jwk_of, key_id
from mooring.pki.keys import MAX_RSA_BITS, PublicKey, accepted_public_key

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
        return None  # a JWK that no library can read is ignored like one of an unknown type
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
