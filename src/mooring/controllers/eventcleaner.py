"""event-cleaner: deletes Events one hour after they were last observed.

Rules kept here (kube-apiserver's `--event-ttl`, one hour):
* The time counts from the newest of: creation, last timestamp, event time, last observation of the series.
* kube-apiserver attaches an etcd lease, which every write renews; here the Event is planned again at the moment it falls due.
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
"""Events explain what just happened; each one uses memory in every server."""


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
        newest = max(_observations(event, now), default=None)
        if newest is None:
            return ()
        if newest + self.ttl > now:
            return (Requeue(newest + self.ttl),)
        return (Delete.of(EVENTS, event),)


def _observations(event: Obj, now: datetime) -> Iterator[datetime]:
    """Yield the moments at which the Event was observed. Times from the client count unless they lie in the future."""
    for moment in _parsed_times(event["metadata"].get("creationTimestamp")):
        yield min(moment, now)
    series = event.get("series") or {}
    for moment in _parsed_times(event.get("lastTimestamp"), event.get("eventTime"), series.get("lastObservedTime")):
        if moment <= now:
            yield moment


def _parsed_times(*texts: str | None) -> Iterator[datetime]:
    for text in texts:
        try:
            yield parse_rfc3339(text or "")
        except ValueError:
            continue
