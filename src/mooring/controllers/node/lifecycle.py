"""node-lifecycle-controller: conditions of a Node become Unknown when its heartbeats end, and its taints follow the conditions.

Rules kept here (Kubernetes documentation "Nodes", heartbeats; kube-controller-manager's defaults):
* A heartbeat is a renewed Lease in kube-node-lease or a new heartbeat time of the Ready condition. Its age counts from the time at
  which this process observed it, so that clocks of machines are never compared.
* After `grace_period` without one, Ready and the pressures become Unknown, reason NodeStatusUnknown. A Node that never had a status
  has `STARTUP_GRACE_PERIOD` from its creation, and gets all four, reason NodeStatusNeverUpdated.
* The message keeps that of the last writer as its beginning, by which the agent recognises its Node.
* Every Node is judged every `MONITOR_PERIOD`. When a judgement is late by `UNOBSERVED`, or the time went back, this process
  was stopped, another one led, or the clock was set: nothing was observed meanwhile, so all ages start again.
* A Node's own program sets its conditions again. Taints change with the event of the conditions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339, rfc3339
from mooring.controllers.actions import Action, Entropy, Key, Requeue, Update
from mooring.controllers.node.taints import READY, ready_condition, tainted

NODES, LEASES = "nodes", "leases"
LEASE_NAMESPACE = "kube-node-lease"
GRACE_PERIOD = timedelta(seconds=50)
"""`--node-monitor-grace-period`."""
STARTUP_GRACE_PERIOD = timedelta(seconds=60)
"""`--node-startup-grace-period`."""
MONITOR_PERIOD = timedelta(seconds=5)
"""`--node-monitor-period`."""
UNOBSERVED = 2 * MONITOR_PERIOD
"""Delay of a judgement after which ages start again: far more than a busy server is late, less than a grace period."""
MAX_UPDATES = 100
"""Nodes that one plan changes; others follow at once. A conflict repeats the plan, so that it must stay short."""
REPORTED = (READY, "MemoryPressure", "DiskPressure", "PIDPressure")
"""Conditions that the program on the node reports. NetworkUnavailable is set by network plugins."""
EVERY: Key = ("", "")


@dataclass(slots=True)
class ObservedHeartbeat:
    """Last observed heartbeat of one Node."""

    uid: str
    renewed: str
    """Renewal time of the Lease, as the node wrote it."""
    reported: str
    """Heartbeat time of the Ready condition, as the node wrote it."""
    observed: datetime


@dataclass(slots=True)
class NodeLifecycle:
    """Judges the heartbeats of all Nodes."""

    grace_period: timedelta = GRACE_PERIOD
    name: str = "node-lifecycle-controller"
    watches: tuple[str, ...] = (NODES, LEASES)
    _heartbeats: dict[str, ObservedHeartbeat] = field(default_factory=dict)
    _due: datetime | None = None
    """Time of the next judgement."""

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        """Return the Node for its taints, and `EVERY`, whose plan repeats itself. Renewals of Leases enqueue nothing."""
        return (("", obj["metadata"]["name"]), EVERY) if plural == NODES and not deleted else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        if key == EVERY:
            return self._judge(views, now)
        node = views[NODES].get(key[1])
        changed = tainted(node, now) if node is not None and not _is_deleted(node) else None
        return (Update(NODES, changed),) if changed is not None else ()

    def _judge(self, views: Views, now: datetime) -> Sequence[Action]:
        due = self._due if self._due is not None else now
        if due - MONITOR_PERIOD <= now < due:
            return (Requeue(due),)
        if not due <= now < due + UNOBSERVED:
            self._heartbeats.clear()
        silent = islice(self._silent(views, now), MAX_UPDATES)
        updates = [Update(NODES, unknown(node, now, self.grace_period), "status") for node in silent]
        nodes = views[NODES]
        self._heartbeats = {name: one for name, one in self._heartbeats.items() if nodes.get(name) is not None}
        self._due = now if len(updates) == MAX_UPDATES else now + MONITOR_PERIOD
        return (*updates, Requeue(self._due)) if self._heartbeats else ()

    def _silent(self, views: Views, now: datetime) -> Iterator[Obj]:
        """Record new heartbeats; yield the Nodes without one in their grace period whose conditions do not say so."""
        leases = views[LEASES]
        for node in views[NODES].list():
            metadata = node["metadata"]
            ready = ready_condition(node)
            lease = leases.get(metadata["name"], LEASE_NAMESPACE)
            renewed = ((lease or {}).get("spec") or {}).get("renewTime") or ""
            reported = (ready or {}).get("lastHeartbeatTime") or ""
            known = self._heartbeats.get(metadata["name"])
            if known is None or known.uid != metadata["uid"]:
                observed = now if ready is not None or renewed else _created(metadata, now)
                known = ObservedHeartbeat(metadata["uid"], renewed, reported, observed)
                self._heartbeats[metadata["name"]] = known
            elif (renewed, reported) != (known.renewed, known.reported):
                known.renewed, known.reported, known.observed = renewed, reported, now
            grace = STARTUP_GRACE_PERIOD if ready is None else self.grace_period
            if now - known.observed > grace and _is_known(ready) and not _is_deleted(node):
                yield node


def unknown(node: Obj, now: datetime, grace_period: timedelta) -> Obj:
    """Return the Node with its reported conditions Unknown."""
    status = node.get("status") or {}
    conditions = status.get("conditions") or []
    since = {"status": "Unknown", "lastTransitionTime": rfc3339(now)}
    if ready_condition(node) is None:
        created = {"lastHeartbeatTime": node["metadata"].get("creationTimestamp")} | since
        never = created | {
            "reason": "NodeStatusNeverUpdated",
            "message": "No program on the node has posted its status.",
        }
        others = [condition for condition in conditions if condition.get("type") not in REPORTED]
        return {**node, "status": {**status, "conditions": [*others, *({"type": kind, **never} for kind in REPORTED)]}}
    silence = f"no heartbeat for {grace_period.total_seconds():.0f} s"
    changed = [
        {**condition, **since, "reason": "NodeStatusUnknown", "message": _joined(condition.get("message"), silence)}
        if condition.get("type") in REPORTED and condition.get("status") != "Unknown"
        else condition
        for condition in conditions
    ]
    return {**node, "status": {**status, "conditions": changed}}


def _joined(message: str | None, silence: str) -> str:
    return f"{message}; {silence}" if message else silence


def _is_known(ready: Obj | None) -> bool:
    return ready is None or ready.get("status") != "Unknown"


def _is_deleted(node: Obj) -> bool:
    return bool(node["metadata"].get("deletionTimestamp"))


def _created(metadata: Obj, now: datetime) -> datetime:
    try:
        return min(now, parse_rfc3339(metadata.get("creationTimestamp") or ""))
    except ValueError:
        return now
