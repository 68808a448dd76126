"""Key sets that other issuers publish, and signatures verified with them (RFC 7517, RFC 7518 section 3).

Rules kept here (docs/protocol/openid-connect.md):
* Nine algorithms and no other: RS, PS and ES with 256, 384 and 512. `none` and HMAC are no algorithms here, so a public key is
  never taken for a shared secret.
* A key verifies only what its type allows (an EC key: the one algorithm of its curve), what its `alg` says if it says one,
  and only if `use` is absent or `sig` and `key_ops` absent or with `verify`. Keys of other types and uses, and keys too
  short or too long to rely on, are passed over: key sets hold encryption keys as well.
* A `kid` in the token chooses among keys that have it; without one, the keys of that algorithm are tried, the first MAX_TRIED.
* The number of keys is bounded, and so are modulus and exponent: verifying must stay cheap whoever publishes the key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric import rsa
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey
from joserfc.jws import JWSRegistry

from mooring.pki.errors import KeyRefusedError, TokenRefusedError
from mooring.pki.keys import accepted_public_key

MAX_KEYS = 128
"""The largest public providers publish about thirty."""
MAX_TRIED = 16
"""Of keys that a token does not tell apart: each costs up to a tenth of a millisecond, and who sent the token is not known yet."""
MAX_EXPONENT_BITS = 32
"""Everybody's is 65537; Go reads no more than this, and verifying takes longer with every bit."""

_RSA: tuple[str, ...] = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_BY_CURVE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"P-256": ("ES256",), "P-384": ("ES384",), "P-521": ("ES512",)}
)
_EC_MEMBERS = ("kty", "crv", "x", "y")


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """One public key, and the algorithms it may verify. `kid` None: it has no name."""

    kid: str | None
    algorithms: tuple[str, ...]
    key: ECKey | RSAKey


@dataclass(frozen=True, slots=True)
class KeySet:
    """The usable keys of one issuer. `digest` differs when what was published differs."""

    keys: tuple[IssuerKey, ...]
    digest: bytes

    def verify(self, token: str, header: Mapping[str, Any]) -> None:
        """Whether one of these keys signed `token`, whose header was peeked at. Raises TokenRefusedError.

        The algorithm must have been found acceptable before, and the token must have three segments.
        """
        wanted = header["alg"]
        named = "kid" in header
        candidates = [one for one in self.keys if not named or one.kid == header["kid"]]
        if not candidates:
            raise TokenRefusedError("unknown-key", "the issuer publishes no key of the id that the token names")
        candidates = [one for one in candidates if wanted in one.algorithms]
        if not candidates:
            raise TokenRefusedError("unsupported-algorithm", f"no key of the issuer's is for {wanted}")
        signed, _, signature = token.rpartition(".")
        raw = _decoded(signature)
        if not any(_verified(wanted, signed.encode(), raw, one.key) for one in candidates[:MAX_TRIED]):
            raise TokenRefusedError("bad-signature", "no key of the issuer's verifies the token's signature")


def parse_key_set(document: bytes) -> KeySet:
    """The keys of a JSON Web Key Set that may verify tokens; at least one. Raises KeyRefusedError."""
    try:
        found = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise KeyRefusedError("the key set is not JSON") from None
    listed = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise KeyRefusedError("the key set has no list of keys")
    if len(listed) > MAX_KEYS:
        raise KeyRefusedError(f"the key set has {len(listed)} keys, more than {MAX_KEYS}")
    keys = tuple(key for key in map(_key, listed) if key is not None)
    if not keys:
        raise KeyRefusedError(f"none of the {len(listed)} keys of the key set can verify a token")
    return KeySet(keys, hashlib.sha256(document).digest())


def _key(listed: Any) -> IssuerKey | None:
    """The key, or None when it is not for verifying tokens here."""
    if not isinstance(listed, dict) or listed.get("use", "sig") != "sig":
        return None
    operations = listed.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    kid = listed.get("kid")
    if not isinstance(kid, str | None):
        return None
    try:
        if listed.get("kty") == "RSA":
            key: ECKey | RSAKey = _rsa_key(listed["n"], listed["e"])
            able = _RSA
        else:
            key = ECKey.import_key({name: listed[name] for name in _EC_MEMBERS})
            able = _BY_CURVE[key.curve_name]
    except (JoseError, KeyRefusedError, TokenRefusedError, ValueError, KeyError, TypeError, AttributeError):
        return None  # whatever the libraries say of it: it is no key for us
    said = listed.get("alg")
    algorithms = able if said is None else tuple(name for name in able if name == said)
    return IssuerKey(kid, algorithms, key) if algorithms else None


def _rsa_key(modulus: str, exponent: str) -> RSAKey:
    n, e = (int.from_bytes(_decoded(text)) for text in (modulus, exponent))
    if e.bit_length() > MAX_EXPONENT_BITS:
        raise KeyRefusedError(f"an exponent of more than {MAX_EXPONENT_BITS} bits")
    key = rsa.RSAPublicNumbers(e, n).public_key()
    accepted_public_key(key)
    return RSAKey.import_key(key)


def _decoded(segment: str) -> bytes:
    try:
        return base64.b64decode(segment + "=" * (-len(segment) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise TokenRefusedError("malformed", "the token's signature is not base64url") from None


def _verified(alg: str, signed: bytes, signature: bytes, key: ECKey | RSAKey) -> bool:
    try:
        return JWSRegistry.algorithms[alg].verify(signed, signature, key)
    except (JoseError, ValueError):
        return False
