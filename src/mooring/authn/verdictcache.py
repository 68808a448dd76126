"""Verdicts that are remembered for a while: of services and slow checks, and of verified signatures."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Generic, TypeVar

from mooring.authn.verdict import Accepted, Verdict
from mooring.bounded import Bounded
from mooring.settings.declaration import DURATION, Settings, duration_within, setting

CACHE_TTL = timedelta(seconds=10)
"""kube-apiserver remembers an accepted token for as long."""
MAX_CACHE_TTL = timedelta(hours=1)
"""A verdict of a remote service may be wrong by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings(Settings):
    """Memory of accepted passwords. A custom authenticator has a `cache-ttl` of its own."""

    heading: ClassVar[str] = "Cache of verdicts"

    authentication_cache_ttl: timedelta = setting(
        DURATION,
        default=CACHE_TTL,
        meaning="For how long an accepted password, and what an authenticator of your own accepted, is remembered; 0: not at all.",
        parse=duration_within(timedelta(0), MAX_CACHE_TTL),
    )


# Verdicts of remote services and of long computations, remembered for a while.
#
# Rules kept here (docs/protocol/authentication.md#caching):
# * Verdicts are kept under an HMAC-SHA256 of the credential and the audiences, with a key of this process. The table holds no
#   credential, and a caller cannot choose one that collides with another's.
# * Acceptances are kept for one time, rejections and "not mine" for another; zero keeps none. The caller of `put` leaves out
#   failures, which are never kept.
# * A clock that went back clears an entry. The table is bounded; the least recently used entry is evicted first.

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


# Content of tokens with a verified signature, remembered: a verification costs a hundred times as much as a lookup.
#
# Rules kept here:
# * A token is kept as its SHA-256, never as text. Its content is kept from the verification to the end of the token. A clock that
#   went back leads to a new verification.
# * Only content that cannot change is kept. Whether the objects of a token still exist is checked at each use.
# * The table is bounded; the least recently used entry is evicted first.

T = TypeVar("T")

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
