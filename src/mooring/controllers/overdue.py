"""Objects that keep somebody out, and are deleted only when the clock has said for a day that they are needed no more.

Rules kept here: a clock that runs years ahead is noticed within hours, because every certificate has ended then. What was deleted
by such a clock would not come back when it is set right, and a certificate that was kept out would count again. So a deletion
waits for GRACE after the first time at which it was due. A restart, or another leader, begins again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from mooring.controllers.actions import Key

GRACE = timedelta(days=1)


@dataclass(slots=True)
class Overdue:
    """Keys that are due, each with the time at which that was seen first."""

    _since: dict[Key, datetime] = field(default_factory=dict)

    def deletable_at(self, key: Key, due: datetime, now: datetime) -> datetime:
        """Return when the object of a key that is due at `due` may be deleted; a moment until `now` means now."""
        if due > now:
            self._since.pop(key, None)
            return due
        since = min(self._since.get(key, now), now)
        self._since[key] = since
        return since + GRACE

    def forget(self, key: Key) -> None:
        self._since.pop(key, None)
