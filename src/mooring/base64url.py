"""base64url without padding (RFC 4648 section 5), as JWTs, JWS and continue tokens use it."""

from __future__ import annotations

import base64


def encode(data: bytes) -> str:
    """Return `data` in base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode(text: str) -> bytes:
    """Return the bytes of base64url text without padding; the standard alphabet is accepted too. Raises ValueError."""
    return base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
