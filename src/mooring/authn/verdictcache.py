"""Verdicts of remote services and of long computations, remembered for a while.

Rules kept here (docs/protocol/authentication.md#caching):
* Verdicts are kept under an HMAC-SHA256 of the credential and the audiences, with a key of this process. The table holds no
  credential, and a caller cannot choose one that collides with another's.
* Acceptances are kept for one time, rejections and "not mine" for another; zero keeps none. The caller of `put` leaves out
  failures, which are never kept.
* A clock that went back clears an entry. The table is bounded; the least recently used entry is evicted first.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from datetime import datetime, timedelta

from mooring.authn.verdict import Accepted, Verdict
from mooring.bounded import Bounded

MAX_REMEMBERED = 4096
"""Credentials in use at once. A verdict has about 1 kB."""
KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class _Kept:
    verdict: Verdict
    since: datetime
    until: datetime


class VerdictCache:
    """Remembered verdicts of one authenticator. `key`: KEY_BYTES of entropy."""

    def __init__(
        self, key: bytes, accepted: timedelta, refused: timedelta = timedelta(0), most: int = MAX_REMEMBERED
    ) -> None:
        self._key = key
        self._accepted = accepted
        self._refused = refused
        self._kept: Bounded[bytes, _Kept] = Bounded(most)

    def place(self, *parts: bytes) -> bytes:
        """Return the key under which the verdict about these parts is kept; each part keeps its own boundaries."""
        digest = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in parts:
            digest.update(len(part).to_bytes(8))
            digest.update(part)
        return digest.digest()

    def get(self, place: bytes, now: datetime) -> Verdict | None:
        """Return the verdict, or None when none is known or it has expired."""
        kept = self._kept.get(place)
        if kept is None:
            return None
        if not kept.since <= now < kept.until:
            del self._kept[place]
            return None
        self._kept.move_to_end(place)
        return kept.verdict

    def put(self, place: bytes, verdict: Verdict, now: datetime) -> None:
        """Remember a verdict of the time `now`."""
        life = self._accepted if isinstance(verdict, Accepted) else self._refused
        if not life:
            return
        self._kept[place] = _Kept(verdict, now, now + life)

    def clear(self) -> None:
        """Forget everything, because the service that decides has changed."""
        self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)
