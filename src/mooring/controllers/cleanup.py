"""Deletion of old events, and of Pods whose node is gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339
from mooring.controllers.actions import Action, Delete, Entropy, Key, Requeue

# event-cleaner: deletes Events one hour after they were last observed.
#
# Rules kept here (kube-apiserver's `--event-ttl`, one hour):
# * The time counts from the newest of: creation, last timestamp, event time, last observation of the series.
# * kube-apiserver attaches an etcd lease, which every write renews; here the Event is planned again at the moment it falls due.

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


# pod-garbage-collector-controller: removes deleted Pods whose node no longer exists.
#
# Rules kept here (Kubernetes documentation "Pod Lifecycle", garbage collection of Pods):
# * A deleted Pod waits until its node stops it. When its grace period is over and no Node of that name exists, the Pod is deleted
#   with grace period 0, so that its namespace can be removed, too. An existing Node is waited for without limit.
# * kube-controller-manager also deletes running Pods of missing nodes. Here no workload controller replaces Pods, so those are
#   left to their owners.

PODS, NODES = "pods", "nodes"


@dataclass(frozen=True, slots=True)
class PodGarbageCollector:
    """Deletes terminating Pods of missing nodes."""

    name: str = "pod-garbage-collector-controller"
    watches: tuple[str, ...] = (PODS, NODES)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        if plural == PODS:
            return list(_terminating([obj])) if not deleted else ()
        node = obj["metadata"]["name"]
        return list(_terminating(pod for pod in views[PODS].list() if _node_name(pod) == node)) if deleted else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        namespace, name = key
        pod = views[PODS].get(name, namespace)
        if pod is None or not any(_terminating([pod])) or views[NODES].get(_node_name(pod)) is not None:
            return ()
        due = parse_rfc3339(pod["metadata"]["deletionTimestamp"])
        if due > now:
            return (Requeue(due),)
        return (Delete.of(PODS, pod, grace_seconds=0),)


def _terminating(pods: Iterable[Obj]) -> Iterator[Key]:
    """Yield the keys of the Pods that were deleted with a grace period, which only their node ends."""
    for pod in pods:
        metadata = pod["metadata"]
        if metadata.get("deletionTimestamp") and metadata.get("deletionGracePeriodSeconds"):
            yield metadata["namespace"], metadata["name"]


def _node_name(pod: Obj) -> str:
    name: str = (pod.get("spec") or {}).get("nodeName", "")
    return name
