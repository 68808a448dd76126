"""Content of tokens with a verified signature, remembered: a verification costs a hundred times as much as a lookup.

Rules kept here:
* A token is kept as its SHA-256, never as text. Its content is kept from the verification to the end of the token. A clock that
  went back leads to a new verification.
* Only content that cannot change is kept. Whether the objects of a token still exist is checked at each use.
* The table is bounded; the least recently used entry is evicted first.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Generic, TypeVar

from mooring.bounded import Bounded

T = TypeVar("T")

MAX_REMEMBERED = 4096
"""Tokens in use at once, about 1 KiB each. Beyond that the least recently used one is verified again."""
FOR_EVER = datetime.max.replace(tzinfo=UTC)


class VerifiedTokens(Generic[T]):
    """Verified tokens of one authenticator."""

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._known: Bounded[bytes, tuple[T, datetime, datetime]] = Bounded(most)

    def get(self, token: bytes, now: datetime) -> T | None:
        """Return the content of the token, or None when it is not known."""
        digest = hashlib.sha256(token).digest()
        known = self._known.get(digest)
        if known is None or not known[1] <= now <= known[2]:
            return None
        self._known.move_to_end(digest)
        return known[0]

    def put(self, token: bytes, says: T, now: datetime, until: datetime = FOR_EVER) -> None:
        """Remember the content of a token that was verified at `now`."""
        self._known[hashlib.sha256(token).digest()] = (says, now, until)

    def clear(self) -> None:
        """Forget everything, because the keys have changed."""
        self._known.clear()
