"""revocation-cleaner: deletes entries of the denylist that are no longer needed.

Rules kept here:
* An entry is deleted KEPT_AFTER_EXPIRY after the day of its `expiresAt`, or later while an expired certificate recovers by rule: a
  revoked machine must not come back that way. The clock must have said so for a day (`mooring.controllers.overdue`).
* An entry without `expiresAt` stays.
* Entries are planned by the day of their `expiresAt`: 100 000 entries are a few hundred keys, and not as many timers.
* The delete carries uid and resourceVersion: an entry that was just prolonged stays.
* Deletion is hygiene: the check of certificates takes an entry into account as long as it exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

from mooring.api.meta.printcolumns import spec_of
from mooring.api.mooring.certificaterevocation import KEPT_AFTER_EXPIRY, PLURAL
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339
from mooring.controllers.actions import Action, Delete, Entropy, Key, Requeue
from mooring.controllers.overdue import Overdue

DAY = timedelta(days=1)
MAX_DELETES = 500
"""Entries deleted by one plan, so that other controllers have their turn."""


@dataclass(slots=True)
class RevocationCleaner:
    """Deletes entries of certificates that ended long ago."""

    recovery_age: timedelta | None = None
    """Time after its end within which a node certificate recovers by rule."""
    name: str = "revocation-cleaner"
    watches: tuple[str, ...] = (PLURAL,)
    _by_day: dict[str, dict[str, None]] = field(default_factory=dict)
    """Names of entries by the day of their `expiresAt`. A name whose entry has another day now is dropped when its day is due."""
    _overdue: Overdue = field(default_factory=Overdue)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        day = _day_of(obj)
        if deleted or not day:
            return ()
        names = self._by_day.setdefault(day, {})
        names[obj["metadata"]["name"]] = None
        return (("", day),)

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        day = key[1]
        begin = parse_rfc3339(f"{day}T00:00:00Z")
        if begin > now:
            return (Requeue(begin),)
        due = begin + DAY + max(KEPT_AFTER_EXPIRY, self.recovery_age or KEPT_AFTER_EXPIRY)
        deletable = self._overdue.deletable_at(key, due, now)
        if deletable > now:
            return (Requeue(deletable),)
        names = self._by_day.get(day, {})
        actions: list[Action] = []
        for name in list(islice(names, MAX_DELETES)):
            del names[name]
            entry = views[PLURAL].get(name)
            if entry is not None and _day_of(entry) == day and not entry["metadata"].get("deletionTimestamp"):
                actions.append(Delete.of(PLURAL, entry))
        if names:
            return (*actions, Requeue(now))
        self._by_day.pop(day, None)
        self._overdue.forget(key)
        return actions


def _day_of(entry: Obj) -> str:
    """Return the day of `expiresAt`, as `2026-01-31`; "" without it. Stored times are in UTC."""
    text: str = spec_of(entry).get("expiresAt") or ""
    return text[:10]
