"""JSON Web Tokens: the compact form, the claims, and their verification."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from joserfc import jws

from mooring import base64url
from mooring.clock import gap, rfc3339
from mooring.pki.errors import TokenRefusedError
from mooring.pki.jwt.keyset import KeySet, algorithm_of, jwk_of, key_id, key_set_of
from mooring.pki.keys import PrivateKey, PublicKey

# Compact JWTs read without verification: header, claims, claimed issuer, and the rules for the header (RFC 7515, RFC 7519).
#
# Rules kept here:
# * An unsecured JWT (algorithm `none`, no signature) is refused here.
# * Nothing that `decode_unverified` or `claimed_issuer` returns is proved: it selects the issuer that verifies the token.
# * `claimed_issuer` also reads malformed tokens, so that a token that names an issuer known here is always judged by that issuer.
# * Absent and null members of a header are one, and so are an empty `kid` and an empty list `crit`, as in go-jose.
# * Errors carry a code and never a part of the token.

Claims = dict[str, Any]

MAX_TOKEN_BYTES = 16 * 1024  # a bound token has about 1.2 kB; servers rarely accept header blocks above 64 kB
MAX_HEADER_BYTES = 512  # alg and kid need about 80
MAX_CLAIMED_BYTES = 64 << 10
"""Bytes of a payload whose issuer is read. A longer token is sent to no webhook and no custom authenticator."""
_STANDARD_TO_URL_SAFE = str.maketrans("+/", "-_")
_SEGMENT = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def decode_unverified(
    token: str, max_header: int = MAX_HEADER_BYTES, max_token: int = MAX_TOKEN_BYTES
) -> tuple[dict[str, Any], Claims]:
    """Return header and claims of a token, UNVERIFIED. Raises TokenRefusedError: malformed, too-large, unsupported-algorithm."""
    # Before anything is decoded: the sender is not known yet.
    if len(token) > max_token:
        raise TokenRefusedError("too-large", f"the token is longer than {max_token} bytes")
    segments = token.split(".")
    is_unsigned = len(segments) == 3 and not segments[2]
    if len(segments) != 3 or not all(_SEGMENT.fullmatch(segment) for segment in segments[: 2 if is_unsigned else 3]):
        raise TokenRefusedError("malformed", "not a token of three base64url segments")
    if len(segments[0]) > max_header:
        raise TokenRefusedError("too-large", f"the token's header is longer than {max_header} bytes")
    header, claims = _decode_object(segments[0], "header"), _decode_object(segments[1], "payload")
    if is_unsigned:
        # An unsecured JWT (RFC 7519 6), and not a token that was cut off.
        is_named = header.get("alg") == "none"
        raise TokenRefusedError("unsupported-algorithm" if is_named else "malformed", "the token has no signature")
    return header, claims


def claimed_issuer(token: str) -> str:
    """Return the issuer that a token names, UNVERIFIED, or "" when it names none.

    The token may be malformed: without a signature, with more than three segments, with an unreadable header, in base64 with
    padding or of the other alphabet, or longer than any token that is verified.
    """
    payload = token.partition(".")[2].partition(".")[0]
    if len(payload) > MAX_CLAIMED_BYTES:
        return ""
    try:
        issuer = _decode_object(payload.strip().rstrip("=").translate(_STANDARD_TO_URL_SAFE), "payload").get("iss")
    except TokenRefusedError:
        return ""
    return issuer if isinstance(issuer, str) else ""


def _decode_object(segment: str, part: str) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(base64url.decode(segment))
    except (ValueError, msgspec.DecodeError, RecursionError):
        raise TokenRefusedError("malformed", f"the token's {part} is not JSON in base64url") from None
    if not isinstance(decoded, dict):
        raise TokenRefusedError("malformed", f"the token's {part} is not an object")
    return decoded


def check_header(header: Mapping[str, Any], algorithms: Collection[str]) -> None:
    """Raise TokenRefusedError unless the header names one of `algorithms`, a text as key id, and no critical extension.

    `algorithms` never contains `none` or an HMAC.
    """
    # First: `none` and an HMAC are refused before a key is looked up (RFC 8725 3.1).
    if header.get("alg") not in algorithms:
        raise TokenRefusedError("unsupported-algorithm", f"wants one of {', '.join(algorithms)}")
    if not isinstance(header.get("kid"), str | None):
        raise TokenRefusedError("malformed", "the token's key id is not a text")
    if header.get("crit") not in (None, []) or header.get("b64") is not None:
        raise TokenRefusedError("malformed", "the token's header demands an extension that is not supported")


# Registered claims of JWTs: times, audiences, and types (RFC 7519 section 4.1).

LEEWAY = timedelta(minutes=1)
"""Difference allowed between this clock and the one that wrote `exp`, `nbf` and `iat`."""


def check_times(claims: Claims, now: datetime, require_expiry: bool) -> None:
    """Raise TokenRefusedError unless `exp`, `nbf` and `iat` allow the token at `now`."""
    expires, begins, issued = (time_claim(claims, name) for name in ("exp", "nbf", "iat"))
    if expires is None and require_expiry:
        raise TokenRefusedError("missing-expiry", "the token has no expiry")
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
    """Return the time in a claim, or None without that claim. Raises TokenRefusedError: malformed."""
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
    """Return the audiences that a token names, or none. Raises TokenRefusedError: malformed, as go-jose does for null, too."""
    named = claims.get("aud", [])
    listed = [named] if isinstance(named, str) else named
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise TokenRefusedError("malformed", "the token's aud is neither a text nor a list of texts")
    return tuple(listed)


def check_texts(claims: Claims, *names: str) -> None:
    """Raise TokenRefusedError, malformed, when one of these claims is present and not a text."""
    for name in names:
        if not isinstance(claims.get(name, ""), str | None):
            raise TokenRefusedError("malformed", f"the token's {name} is not a text")


# JWTs that the cluster signs and verifies itself, such as service account tokens (RFC 7519).
#
# Rules kept here (docs/protocol/service-account-tokens.md#bound-tokens):
# * A signed header has exactly `alg` and `kid`.
# * The public half of the signing key is always among the keys that verify, and comes first. Signing key and verification keys
#   are replaced together.

ALGORITHMS = ("ES256", "ES384", "ES512", "RS256")
"""Algorithms of service account keys."""


class TokenSigner:
    """Signs claims with one private key on behalf of one issuer."""

    def __init__(self, private_key: PrivateKey, issuer: str) -> None:
        """`private_key` is of a type that signs tokens; raises KeyRefusedError otherwise."""
        self.issuer = issuer
        self.public_key = private_key.public_key()
        self.algorithm = algorithm_of(private_key)
        self.key_id = key_id(private_key)
        self._header = {"alg": self.algorithm, "kid": self.key_id}
        self._key = jwk_of(private_key)

    def sign(self, claims: Claims) -> str:
        """Return the compact token of `claims`. The text is a credential: give it to its owner only."""
        payload = json.dumps(claims, separators=(",", ":"), ensure_ascii=False)
        return jws.serialize_compact(dict(self._header), payload, self._key, algorithms=[self.algorithm])

    def __repr__(self) -> str:
        return f"TokenSigner({self.algorithm}, {self.issuer!r})"


class TokenKeys:
    """The current signing key of one server and its verification keys. Read the attributes at each use: `replace` changes them."""

    def __init__(self, signer: TokenSigner, others: Iterable[PublicKey] = ()) -> None:
        """`others` verify beside the signer's own key. Raises KeyRefusedError for a key that does not sign tokens."""
        self.replace(signer, others)

    def replace(self, signer: TokenSigner, others: Iterable[PublicKey]) -> None:
        """Sign and verify with these keys from now on. Raises KeyRefusedError."""
        # All keys are read before one is replaced: after an error nothing has changed.
        by_id = {key_id(key): key for key in (signer.public_key, *others)}
        verifying = key_set_of(by_id.values())
        self.signer = signer
        self.verifying = verifying
        self.public_keys: tuple[PublicKey, ...] = tuple(by_id.values())
        self.key_ids: tuple[str, ...] = tuple(by_id)


def verify_token(
    token: str,
    keys: KeySet,
    now: datetime,
    *,
    issuers: Collection[str],
    require_expiry: bool = True,
) -> Claims:
    """Return the claims of a token that one of `issuers` signed with one of `keys` and that is valid at `now`.

    Audience and bound objects are for the caller to check. `require_expiry=False` is for the tokens of Secrets, which have none.
    Raises TokenRefusedError.
    """
    # Shape, algorithm and issuer before any cryptography: a token of another issuer costs no signature check. The
    # times come last: before the signature they prove nothing.
    header, claims = decode_unverified(token)
    check_header(header, ALGORITHMS)
    issuer = claims.get("iss")
    if not isinstance(issuer, str) or issuer not in issuers:
        raise TokenRefusedError("wrong-issuer", "the token was issued by another issuer")
    keys.verify(token, header)
    check_times(claims, now, require_expiry)
    return claims
