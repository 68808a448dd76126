"""event-cleaner: Events go after an hour.

Rules kept here (kube-apiserver's `--event-ttl`, one hour): the time counts from the newest sign of life that an Event gives:
creation, last timestamp, event time, or the last observation of its series. The reference keeps it as a lease of its storage, which
every write begins anew; here the Event is planned again at the moment it falls due.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339
from mooring.controllers.actions import Action, Delete, Entropy, Key, Requeue

EVENTS = "events"
TTL = timedelta(hours=1)
"""Events are for people who look into what just happened; each of them costs memory in every server."""


@dataclass(frozen=True, slots=True)
class EventCleaner:
    """Deletes old Events."""

    ttl: timedelta = TTL
    name: str = "event-cleaner"
    watches: tuple[str, ...] = (EVENTS,)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        return () if deleted else ((obj["metadata"]["namespace"], obj["metadata"]["name"]),)

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        namespace, name = key
        event = views[EVENTS].get(name, namespace)
        if event is None or event["metadata"].get("deletionTimestamp"):
            return ()
        newest = max(_signs(event, now), default=None)
        if newest is None:
            return ()
        if newest + self.ttl > now:
            return (Requeue(newest + self.ttl),)
        metadata = event["metadata"]
        return (Delete(EVENTS, namespace, name, metadata["uid"], metadata["resourceVersion"]),)


def _signs(event: Obj, now: datetime) -> Iterator[datetime]:
    """When the Event is known to have been written. What its author claims counts unless it lies in the future."""
    for moment in _moments(event["metadata"].get("creationTimestamp")):
        yield min(moment, now)
    series = event.get("series") or {}
    for moment in _moments(event.get("lastTimestamp"), event.get("eventTime"), series.get("lastObservedTime")):
        if moment <= now:
            yield moment


def _moments(*texts: str | None) -> Iterator[datetime]:
    for text in texts:
        try:
            yield parse_rfc3339(text or "")
        except ValueError:
            continue
