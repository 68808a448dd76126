"""Uses of the tokens that Secrets hold, noted for a background task that records them. No request waits for that.

Rules kept here:
* Token of a service account (docs/protocol/service-account-tokens.md#legacy-tokens): a use is noted when the label of the Secret
  names neither today nor tomorrow, because another server's clock may be ahead. So it is noted once a day.
* Bootstrap token: a use is noted when the annotation is missing, unreadable, or more than an hour away. A thousand joins in an
  hour cause one write.
* The number of notes is bounded; a use without room is noted at the next use.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339, rfc3339
from mooring.trust.bootstraptoken import restrictions

LAST_USED = "kubernetes.io/legacy-token-last-used"
BOOTSTRAP_LAST_USED = restrictions.LAST_USED
"""Annotation of a bootstrap token: the time of a use, at most an hour before the last one."""
BOOTSTRAP_USE_EVERY = timedelta(hours=1)
MAX_NOTED = 4096
"""Secrets used for the first time of the day between two writings: they come together after midnight."""


@dataclass(frozen=True, slots=True)
class LastUse:
    """The token of this very Secret was used. `metadata`: what the Secret's metadata is to say of it."""

    namespace: str
    name: str
    uid: str
    metadata: Obj


class LastUses:
    """Notes of one server process."""

    def __init__(self, most: int = MAX_NOTED) -> None:
        self._most = most
        self._noted: dict[tuple[str, str], LastUse] = {}

    def note(self, secret: Obj, now: datetime) -> None:
        """Note that the token of a service account in `secret` was used at `now`."""
        metadata = secret["metadata"]
        day = now.date()
        said = (metadata.get("labels") or {}).get(LAST_USED)
        if said in (day.isoformat(), (day + timedelta(days=1)).isoformat()):
            return
        self._keep(secret, {"labels": {LAST_USED: day.isoformat()}})

    def note_bootstrap_token(self, secret: Obj, now: datetime) -> None:
        """Note that the bootstrap token in `secret` was used at `now`."""
        said = (secret["metadata"].get("annotations") or {}).get(BOOTSTRAP_LAST_USED, "")
        try:
            if abs(now - parse_rfc3339(said)) < BOOTSTRAP_USE_EVERY:
                return
        except ValueError:
            pass  # missing, or not written by a server
        self._keep(secret, {"annotations": {BOOTSTRAP_LAST_USED: rfc3339(now)}})

    def _keep(self, secret: Obj, said: Obj) -> None:
        metadata = secret["metadata"]
        place = (metadata["namespace"], metadata["name"])
        if place in self._noted or len(self._noted) < self._most:
            self._noted[place] = LastUse(*place, metadata.get("uid", ""), said)

    def take(self) -> tuple[LastUse, ...]:
        """Return and clear the notes."""
        noted, self._noted = self._noted, {}
        return tuple(noted.values())
