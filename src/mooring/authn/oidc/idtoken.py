"""Checks of an ID token that need no key: algorithm, audience and times.

Rules kept here (docs/protocol/openid-connect.md#verification; OpenID Connect Core 1.0 section 3.1.3.7; the leeways are
kube-apiserver's):
* The algorithm must be allowed for the issuer. `none` and every HMAC never are, and are rejected before a key is used.
* A header with critical extensions is rejected, and so is a `kid` that is not text.
* The token must be for one of the configured audiences.
* `exp` must be there and must not be past, without leeway. `nbf` may lie one minute ahead. `iat` must be a time, at any moment.
* `aud` is a text or a list of texts; a list with anything else in it is rejected.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from mooring.authn.claims.mapping import ClaimsRefusedError
from mooring.authn.reasons import WRONG_AUDIENCE
from mooring.duration import format_duration
from mooring.errors import quoted
from mooring.pki.errors import TokenRefusedError
from mooring.pki.jwt.claims import audiences, check_texts, time_claim
from mooring.pki.jwt.compact import Claims, check_header

NOT_BEFORE_LEEWAY = timedelta(minutes=1)
MAX_HEADER = 4096
"""Bytes of a token's header: some issuers put their certificate there."""
MAX_TOKEN = 32 << 10
"""Bytes of a token: directories list hundreds of groups."""
_SECOND = timedelta(seconds=1)
_SHOWN_AUDIENCES, _MAX_AUDIENCE = 3, 64
"""Audiences of a token in a detail, and the characters of each."""
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_MAX_NUMBER = 32  # characters: seconds since 1970 have ten


@dataclass(frozen=True, slots=True)
class Expected:
    """Audiences and algorithms that the tokens of an issuer may have."""

    audiences: tuple[str, ...]
    algorithms: tuple[str, ...]


def check(header: dict[str, Any], claims: Claims, expected: Expected, now: datetime) -> datetime:
    """Return the time at which the token expires. Raises TokenRefusedError or ClaimsRefusedError."""
    check_header(header, expected.algorithms)
    stated = audiences(claims)
    if not any(one in expected.audiences for one in stated):
        found = ", ".join(quoted(one[:_MAX_AUDIENCE]) for one in stated[:_SHOWN_AUDIENCES]) or "no audience"
        raise ClaimsRefusedError(WRONG_AUDIENCE, f"for {found}, wants audience {' or '.join(expected.audiences)}")
    expires, begins, _ = (_read_time(claims, name) for name in ("exp", "nbf", "iat"))
    check_texts(claims, "sub", "nonce", "at_hash")
    if expires is None:
        raise TokenRefusedError("missing-expiry", "the token has no expiry")
    if now > expires:
        raise TokenRefusedError("expired", f"expired {_whole_seconds(now - expires)} ago")
    if begins is not None and now + NOT_BEFORE_LEEWAY < begins:
        raise TokenRefusedError(
            "not-yet-valid", f"not valid for another {_whole_seconds(begins - now)}: compare the clocks"
        )
    return expires


def _read_time(claims: Claims, name: str) -> datetime | None:
    """Return the time in a claim. A number in quotes is a number to kube-apiserver, too, and null is none."""
    value = claims.get(name)
    if name == "iat" and value is None and name in claims:
        raise TokenRefusedError("malformed", "the token's iat is not a number of seconds")
    if isinstance(value, str) and len(value) <= _MAX_NUMBER and _NUMBER.fullmatch(value):
        claims = {name: float(value)}
    return time_claim(claims, name)


def _whole_seconds(duration: timedelta) -> str:
    """To the second, rounded up."""
    return format_duration(-(-duration // _SECOND) * _SECOND)
