"""What tokens with a good signature say, remembered: verifying one costs a hundred times as much as looking it up.

Rules kept here:
* A token is known by its SHA-256, never by its text. What is remembered holds from when it was verified to its end; a clock that
  went back asks anew.
* Only what cannot change is remembered: whether what a token is bound to still lives is asked at every use.
* The table is bounded; the longest unused goes first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_REMEMBERED = 4096
"""Tokens in use at once, about 1 KiB each; beyond that the longest unused is verified again."""
FOR_EVER = datetime.max.replace(tzinfo=UTC)


class VerifiedTokens(Generic[T]):
    """One authenticator's memory."""

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._most = most
        self._known: OrderedDict[bytes, tuple[T, datetime, datetime]] = OrderedDict()

    def get(self, token: bytes, now: datetime) -> T | None:
        """What the token says, if that is known."""
        digest = hashlib.sha256(token).digest()
        known = self._known.get(digest)
        if known is None or not known[1] <= now <= known[2]:
            return None
        self._known.move_to_end(digest)
        return known[0]

    def put(self, token: bytes, says: T, now: datetime, until: datetime = FOR_EVER) -> None:
        """Remember what a token says that was verified now."""
        digest = hashlib.sha256(token).digest()
        self._known[digest] = (says, now, until)
        self._known.move_to_end(digest)
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def clear(self) -> None:
        """Forget everything: the keys are others now."""
        self._known.clear()
