"""Compact JWTs read without verification: header, claims, claimed issuer, and the rules for the header (RFC 7515, RFC 7519).

Rules kept here:
* The size of a token is capped before anything is decoded. An unsecured JWT (algorithm `none`, no signature) is refused here.
* Nothing that `decode_unverified` or `claimed_issuer` returns is proved: it selects the issuer that verifies the token.
* `claimed_issuer` also reads malformed tokens, so that a token that names an issuer known here is always judged by that issuer.
* Absent and null members of a header are one, and so are an empty `kid` and an empty list `crit`, as in go-jose.
* Errors carry a code and never a part of the token.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from mooring import base64url
from mooring.pki.errors import TokenRefusedError

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
        is_named = header.get("alg") == "none"  # an unsecured JWT (RFC 7519 6), and not one that was cut off
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

    `algorithms` never contains `none` or an HMAC, so both are refused before a key is looked up.
    """
    if header.get("alg") not in algorithms:
        raise TokenRefusedError("unsupported-algorithm", f"wants one of {', '.join(algorithms)}")
    if not isinstance(header.get("kid"), str | None):
        raise TokenRefusedError("malformed", "the token's key id is not a text")
    if header.get("crit") not in (None, []) or header.get("b64") is not None:
        raise TokenRefusedError("malformed", "the token's header demands an extension that is not supported")
