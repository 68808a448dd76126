"""Signed tokens of service accounts: claims, signing, verification (JWT, RFC 7519; JWS compact, RFC 7515).

Rules kept here (docs/protocol/service-account-tokens.md#bound-tokens):
* The header has exactly `alg` and `kid`; `kid` is base64url(SHA-256(SubjectPublicKeyInfo)) without padding.
* The algorithm follows from the key: RS256 for RSA, ES256, ES384, ES512 for P-256, P-384, P-521. Nothing else is signed or
  accepted: `none` and every HMAC are refused before a key is looked at.
* A `kid` chooses the key, and one that is not known is a refusal; without `kid` every key of that algorithm is tried.
* `exp`, `nbf` and `iat` are compared with one minute of leeway. Size is capped before anything is decoded.
* `peek` reads without verifying, for choosing who is to verify; nothing it returns may be believed.
* `claimed_issuer` also reads tokens that are malformed and that nobody could have signed.
* Refusals carry a code and never a part of the token.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey

from mooring.clock import gap, rfc3339
from mooring.identity import service_account_username
from mooring.pki.errors import KeyRefusedError, TokenRefusedError
from mooring.pki.keys import PrivateKey, PublicKey, public_key_der

Claims = dict[str, Any]

LEEWAY = timedelta(minutes=1)
MAX_TOKEN_BYTES = 16 * 1024  # a bound token has about 1.2 kB; a whole header block is rarely let above 64 kB
MAX_HEADER_BYTES = 512  # the signing library's own cap: alg and kid need about 80

ALGORITHMS = ("ES256", "ES384", "ES512", "RS256")

MAX_CLAIMED_BYTES = (
    64 << 10
)  # a longer token is sent to no webhook and to no custom authenticator, so its issuer does not matter
_URL_SAFE = str.maketrans("+/", "-_")
_BY_CURVE: Mapping[str, str] = MappingProxyType({"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"})
_SEGMENT = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def key_id(key: PrivateKey | PublicKey) -> str:
    """The `kid` Kubernetes gives a key."""
    return base64.urlsafe_b64encode(hashlib.sha256(public_key_der(key)).digest()).rstrip(b"=").decode("ascii")


def jwk(key: PrivateKey | PublicKey) -> ECKey | RSAKey:
    """The key as the signing library wants it. Raises KeyRefusedError for Ed25519, which service accounts never use."""
    if isinstance(key, rsa.RSAPrivateKey | rsa.RSAPublicKey):
        return RSAKey.import_key(key)
    if isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey):
        return ECKey.import_key(key)
    raise KeyRefusedError("service account tokens are signed with ECDSA or RSA keys, not with Ed25519")


def algorithm(key: PrivateKey | PublicKey) -> str:
    """The JWS algorithm a key signs with. Raises KeyRefusedError for Ed25519."""
    found = jwk(key)
    return "RS256" if isinstance(found, RSAKey) else _BY_CURVE[found.curve_name]


class TokenSigner:
    """Signs claims with one private key on behalf of one issuer."""

    def __init__(self, private_key: PrivateKey, issuer: str) -> None:
        """Raises KeyRefusedError for a key of a kind that does not sign tokens."""
        self.issuer = issuer
        self.public_key = private_key.public_key()
        self.algorithm = algorithm(private_key)
        self.key_id = key_id(private_key)
        self._header = {"alg": self.algorithm, "kid": self.key_id}
        self._key = jwk(private_key)

    def sign(self, claims: Claims) -> str:
        """The compact token of `claims`. Its text is a credential: hand it to its owner only."""
        payload = json.dumps(claims, separators=(",", ":"), ensure_ascii=False)
        return jws.serialize_compact(dict(self._header), payload, self._key, algorithms=[self.algorithm])

    def __repr__(self) -> str:
        return f"TokenSigner({self.algorithm}, {self.issuer!r})"


class VerificationKeys:
    """Public keys prepared for verifying, found by `kid`. An empty set verifies nothing."""

    def __init__(self, keys: Iterable[PublicKey]) -> None:
        """Raises KeyRefusedError for a key of a kind that does not sign tokens."""
        self.public_keys = tuple(keys)
        self._keys = {key_id(key): (algorithm(key), jwk(key)) for key in self.public_keys}

    @property
    def key_ids(self) -> tuple[str, ...]:
        """Names of the keys, in the order given."""
        return tuple(self._keys)

    def candidates(self, header: Mapping[str, Any]) -> list[ECKey | RSAKey]:
        """The keys that may have signed a token with this header. Raises TokenRefusedError."""
        wanted = header["alg"]
        if "kid" not in header:
            return [key for alg, key in self._keys.values() if alg == wanted]
        found = self._keys.get(header["kid"])
        if found is None:
            raise TokenRefusedError("unknown-key", "the token names a key that is not known here")
        if found[0] != wanted:
            raise TokenRefusedError("unsupported-algorithm", "the token names an algorithm that is not its key's")
        return [found[1]]


def peek(
    token: str, max_header: int = MAX_HEADER_BYTES, max_token: int = MAX_TOKEN_BYTES
) -> tuple[dict[str, Any], Claims]:
    """Header and claims of a token, UNVERIFIED. Raises TokenRefusedError: malformed, too-large."""
    if len(token) > max_token:
        raise TokenRefusedError("too-large", f"the token is longer than {max_token} bytes")
    segments = token.split(".")
    if len(segments) != 3 or not all(_SEGMENT.fullmatch(segment) for segment in segments):
        raise TokenRefusedError("malformed", "not a token of three base64url segments")
    if len(segments[0]) > max_header:
        raise TokenRefusedError("too-large", f"the token's header is longer than {max_header} bytes")
    return _object(segments[0], "header"), _object(segments[1], "payload")


def claimed_issuer(token: str) -> str:
    """Return the issuer that a token names, UNVERIFIED, or "" when it names none.

    The token may be malformed: without a signature, with more segments than three, with an unreadable header, in base64 with
    padding or of the other alphabet, or longer than any token that is verified.
    """
    payload = token.partition(".")[2].partition(".")[0]
    if len(payload) > MAX_CLAIMED_BYTES:
        return ""
    try:
        issuer = _object(payload.strip().rstrip("=").translate(_URL_SAFE), "payload").get("iss")
    except TokenRefusedError:
        return ""
    return issuer if isinstance(issuer, str) else ""


def _object(segment: str, which: str) -> dict[str, Any]:
    try:
        raw = base64.b64decode(segment + "=" * (-len(segment) % 4), b"-_", validate=True)
        found = msgspec.json.decode(raw)
    except (ValueError, msgspec.DecodeError, RecursionError):
        raise TokenRefusedError("malformed", f"the token's {which} is not JSON in base64url") from None
    if not isinstance(found, dict):
        raise TokenRefusedError("malformed", f"the token's {which} is not an object")
    return found


def verify_jwt(
    token: str,
    keys: VerificationKeys,
    now: datetime,
    *,
    issuers: Collection[str],
    require_expiry: bool = True,
) -> Claims:
    """The claims of a token that one of `issuers` signed with one of `keys` and that is valid at `now`.

    Audience and bound objects are for the caller to check. `require_expiry=False` is for legacy tokens, which have none.
    Raises TokenRefusedError with its code.
    """
    # (1) Shape, algorithm and header, before any cryptography.
    header, claims = peek(token)
    if header.get("alg") not in ALGORITHMS:
        raise TokenRefusedError("unsupported-algorithm", f"the token's algorithm is none of {', '.join(ALGORITHMS)}")
    if not isinstance(header.get("kid", ""), str):
        raise TokenRefusedError("malformed", "the token's key id is not a text")
    if "crit" in header or "b64" in header:
        raise TokenRefusedError("malformed", "the token's header demands an extension that is not supported")
    issuer = claims.get("iss")
    if not isinstance(issuer, str) or issuer not in issuers:
        raise TokenRefusedError("wrong-issuer", "the token was issued by somebody else")

    # (2) The signature.
    if not any(_signed_with(token, header["alg"], key) for key in keys.candidates(header)):
        raise TokenRefusedError("bad-signature", "no known key verifies the token's signature")

    # (3) The times.
    _check_times(claims, now, require_expiry)
    return claims


def _signed_with(token: str, alg: str, key: ECKey | RSAKey) -> bool:
    try:
        jws.deserialize_compact(token, key, algorithms=[alg])
    except (JoseError, ValueError):
        return False
    return True


def _check_times(claims: Claims, now: datetime, require_expiry: bool) -> None:
    expires, begins, issued = (time_claim(claims, name) for name in ("exp", "nbf", "iat"))
    if expires is None and require_expiry:
        raise TokenRefusedError("missing-expiry", "the token does not say when it expires")
    if expires is not None and now - LEEWAY > expires:
        raise TokenRefusedError("expired", f"the token expired {gap(now - expires)} ago, at {rfc3339(expires)}")
    if begins is not None and now + LEEWAY < begins:
        raise TokenRefusedError(
            "not-yet-valid", f"the token is not valid for another {gap(begins - now)}: compare the clocks"
        )
    if issued is not None and now + LEEWAY < issued:
        raise TokenRefusedError(
            "issued-in-future", f"the token was issued {gap(issued - now)} from now: compare the clocks"
        )


def time_claim(claims: Claims, name: str) -> datetime | None:
    """The time that a claim says; None when it is not there. Raises TokenRefusedError: malformed."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRefusedError("malformed", f"the token's {name} is not a number of seconds")
    try:
        return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        raise TokenRefusedError("malformed", f"the token's {name} is not a time") from None


def audiences(claims: Claims) -> tuple[str, ...]:
    """Return the audiences that a token names; none when it names none. Raises TokenRefusedError: malformed."""
    named = claims.get("aud")
    listed = [named] if isinstance(named, str) else named or []
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise TokenRefusedError("malformed", "the token's aud is neither a text nor a list of texts")
    return tuple(listed)


def check_texts(claims: Claims, *names: str) -> None:
    """Raise TokenRefusedError, malformed, when one of these claims is there and is no text."""
    for name in names:
        if not isinstance(claims.get(name, ""), str | None):
            raise TokenRefusedError("malformed", f"the token's {name} is not a text")


@dataclass(frozen=True, slots=True)
class Bound:
    """An object a token lives and dies with."""

    name: str
    uid: str

    def claim(self) -> dict[str, str]:
        return {"name": self.name, "uid": self.uid}


def bound_claims(
    *,
    issuer: str,
    namespace: str,
    service_account: Bound,
    audiences: Iterable[str],
    now: datetime,
    lifetime: timedelta,
    jti: str,
    pod: Bound | None = None,
    secret: Bound | None = None,
    node: Bound | None = None,
) -> Claims:
    """The claims of a bound token."""
    issued = int(now.timestamp())
    private: dict[str, Any] = {"namespace": namespace}
    for kind, bound in (("node", node), ("pod", pod), ("secret", secret), ("serviceaccount", service_account)):
        if bound is not None:
            private[kind] = bound.claim()
    return {
        "aud": list(audiences),
        "exp": issued + int(lifetime.total_seconds()),
        "iat": issued,
        "iss": issuer,
        "jti": jti,
        "kubernetes.io": private,
        "nbf": issued,
        "sub": service_account_username(namespace, service_account.name),
    }
