"""Uses of the tokens that Secrets hold, noted for a background task that records them. No request waits for that.

Rules kept here (docs/protocol/service-account-tokens.md#legacy-tokens): a use is noted when the label of the Secret names neither
today nor tomorrow, because another server's clock may be ahead. So it is noted once a day. The number of notes is bounded; a use
without room is noted at the next use.
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
    """Notes of one server process."""

    def __init__(self, most: int = MAX_NOTED) -> None:
        self._most = most
        self._noted: dict[tuple[str, str], LastUse] = {}

    def note(self, secret: Obj, now: datetime) -> None:
        """Note that the token of `secret` was used at `now`."""
        metadata = secret["metadata"]
        day = now.date()
        said = (metadata.get("labels") or {}).get(LAST_USED)
        if said in (day.isoformat(), (day + timedelta(days=1)).isoformat()):
            return
        place = (metadata["namespace"], metadata["name"])
        if place in self._noted or len(self._noted) < self._most:
            self._noted[place] = LastUse(*place, metadata.get("uid", ""), day.isoformat())

    def take(self) -> tuple[LastUse, ...]:
        """Return and clear the notes."""
        noted, self._noted = self._noted, {}
        return tuple(noted.values())
