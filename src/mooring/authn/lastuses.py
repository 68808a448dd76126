"""Which Secrets' tokens were used today, for whoever writes it down: a request never waits for that.

Rules kept here (docs/protocol/service-account-tokens.md#legacy-tokens): a use is noted when the label of the Secret says neither
today nor tomorrow (another server's clock may be ahead), so once a day. Notes are few and bounded: one that finds no room is made
again at the next use.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from mooring.apimachinery.schema import Obj

LAST_USED = "kubernetes.io/legacy-token-last-used"
MAX_NOTED = 4096
"""Secrets used for the first time of the day between two writings: they come together after midnight."""


@dataclass(frozen=True, slots=True)
class LastUse:
    """The token of this very Secret was used on `day` (`2026-01-02`, UTC)."""

    namespace: str
    name: str
    uid: str
    day: str


class LastUses:
    """The notes of one server process."""

    def __init__(self, most: int = MAX_NOTED) -> None:
        self._most = most
        self._noted: dict[tuple[str, str], LastUse] = {}

    def note(self, secret: Obj, now: datetime) -> None:
        """The token of `secret` was shown at `now`."""
        metadata = secret["metadata"]
        day = now.date()
        said = (metadata.get("labels") or {}).get(LAST_USED)
        if said in (day.isoformat(), (day + timedelta(days=1)).isoformat()):
            return
        place = (metadata["namespace"], metadata["name"])
        if place in self._noted or len(self._noted) < self._most:
            self._noted[place] = LastUse(*place, metadata.get("uid", ""), day.isoformat())

    def take(self) -> tuple[LastUse, ...]:
        """What was noted since the last time."""
        noted, self._noted = self._noted, {}
        return tuple(noted.values())
