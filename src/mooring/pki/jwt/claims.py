"""Registered claims of JWTs: times, audiences, and types (RFC 7519 section 4.1)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from mooring.clock import gap, rfc3339
from mooring.pki.errors import TokenRefusedError
from mooring.pki.jwt.compact import Claims

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
