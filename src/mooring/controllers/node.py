"""Nodes: the identity of a machine, its condition and taints when it falls silent, and its node password."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

from mooring.api.mooring.membership import is_terminating, was_deleted, with_node_recorded, with_spec
from mooring.api.mooring.nodeidentity import PLURAL, certified_names_of, companions_of, keys_of
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.api.objectmeta import spec_of
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339, rfc3339
from mooring.controllers.actions import Action, Delete, Entropy, Key, Overdue, Requeue, Update
from mooring.controllers.certificates.issuance import ephemeral_life
from mooring.trust.k3s.nodepassword import NAMESPACE, node_of, secret_name

# Taints of a Node that follow from its conditions.
#
# Rules kept here (Kubernetes documentation "Taints and Tolerations", "Nodes"):
# * Ready False taints with `not-ready`, Ready Unknown with `unreachable`, both NoSchedule and NoExecute. Pressures, a network
#   that is not available, and `spec.unschedulable` taint with NoSchedule.
# * Only these taints are added and removed. A Node without a Ready condition keeps its NoExecute taints.

PREFIX = "node.kubernetes.io/"
NOT_READY, UNREACHABLE, UNSCHEDULABLE = PREFIX + "not-ready", PREFIX + "unreachable", PREFIX + "unschedulable"
NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "NoExecute"
READY = "Ready"
_OF_CONDITION = {
    (READY, "False"): NOT_READY,
    (READY, "Unknown"): UNREACHABLE,
    ("MemoryPressure", "True"): PREFIX + "memory-pressure",
    ("DiskPressure", "True"): PREFIX + "disk-pressure",
    ("PIDPressure", "True"): PREFIX + "pid-pressure",
    ("NetworkUnavailable", "True"): PREFIX + "network-unavailable",
}
_NO_SCHEDULE_KEYS = frozenset({*_OF_CONDITION.values(), UNSCHEDULABLE})
_NO_EXECUTE_KEYS = frozenset({NOT_READY, UNREACHABLE})


def tainted(node: Obj, now: datetime) -> Obj | None:
    """Return the Node with the taints of its conditions, or None when it has them."""
    spec = node.get("spec") or {}
    present = spec.get("taints") or []
    wanted = dict.fromkeys(_wanted(node))
    kept = [taint for taint in present if not _is_managed(taint, node) or _identity(taint) in wanted]
    known = {_identity(taint) for taint in kept}
    added = [
        {"key": key, "effect": effect, "timeAdded": rfc3339(now)}
        for key, effect in wanted
        if (key, effect) not in known
    ]
    if not added and len(kept) == len(present):
        return None
    changed = {name: value for name, value in spec.items() if name != "taints"}
    taints = [*kept, *added]
    return {**node, "spec": {**changed, "taints": taints} if taints else changed}


def _wanted(node: Obj) -> Iterator[tuple[str, str]]:
    for condition in (node.get("status") or {}).get("conditions") or ():
        kind = condition.get("type")
        key = _OF_CONDITION.get((kind, condition.get("status")))
        if key is not None:
            yield key, NO_SCHEDULE
            if kind == READY:
                yield key, NO_EXECUTE
    if (node.get("spec") or {}).get("unschedulable"):
        yield UNSCHEDULABLE, NO_SCHEDULE


def _is_managed(taint: Obj, node: Obj) -> bool:
    key, effect = _identity(taint)
    if effect == NO_EXECUTE:
        return key in _NO_EXECUTE_KEYS and ready_condition(node) is not None
    return effect == NO_SCHEDULE and key in _NO_SCHEDULE_KEYS


def ready_condition(node: Obj) -> Obj | None:
    """Return the Ready condition, or None."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == READY), None)


def _identity(taint: Obj) -> tuple[str, str]:
    return taint.get("key", ""), taint.get("effect", "")


# node-lifecycle-controller: conditions of a Node become Unknown when its heartbeats end, and its taints follow the conditions.
#
# Rules kept here (Kubernetes documentation "Nodes", heartbeats; kube-controller-manager's defaults):
# * A heartbeat is a renewed Lease in kube-node-lease or a new heartbeat time of the Ready condition. Its age counts from the time
#   at which this process observed it, so that clocks of machines are never compared.
# * After `grace_period` without one, Ready and the pressures become Unknown, reason NodeStatusUnknown. A Node that never had a
#   status has `STARTUP_GRACE_PERIOD` from its creation, and gets all four, reason NodeStatusNeverUpdated.
# * The message keeps that of the last writer as its beginning, by which the agent recognises its Node.
# * Every Node is judged every `MONITOR_PERIOD`. When a judgement is late by `UNOBSERVED`, or the time went back, this process
#   was stopped, another one led, or the clock was set: nothing was observed meanwhile, so all ages start again.
# * A Node's own program sets its conditions again. Taints change with the event of the conditions.

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


# node-identity-controller: keeps the record of each Node in its NodeIdentity, and deletes identities that no machine can use.
#
# Rules kept here:
# * A machine that may create its Node again (`--node-deletion=reregisters`) and did so has a new Node: the record of the old one
#   is removed. A change of the setting changes the records of deleted Nodes.
# * A Mooring server records the uid of a Node when it is deleted. Another API server does not, so that the controller records it
#   when the Node appears. Such a server lets machines create their Nodes again.
# * A NodeIdentity is deleted once no Node has its name and the newest certificate ended KEPT_FOR ago. Until then a machine may
#   come back with the expired certificate. The clock must have said so for a day (`mooring.controllers.actions`).
# * That of an ephemeral machine (`spec.silenceSeconds`) is deleted once its last certificate has ended: such machines are many, and
#   do not come back.
# * One without keys is kept as long as a certificate of the cluster lives. It stays when it records a deleted Node: what it keeps
#   out was made by hand, and its end is unknown. So does one whose machine had such a certificate (`formerCertificate`).

KEPT_FOR = timedelta(days=365)
"""Time for which an expired name is remembered: longer than machines are off."""


@dataclass(frozen=True, slots=True)
class NodeIdentityController:
    """Keeps NodeIdentities."""

    signing_duration: timedelta
    deletion_ends_membership: bool = True
    records_nodes: bool = False
    """True where the API server does not record deletions itself."""
    name: str = "node-identity-controller"
    watches: tuple[str, ...] = (PLURAL, NODES)
    _overdue: Overdue = field(default_factory=Overdue, repr=False, compare=False)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        """Plan for a changed identity, and for that of a Node which is gone, or which may need another record."""
        if plural == PLURAL:
            needed = not deleted
        else:
            identity = views[PLURAL].get(obj["metadata"]["name"])
            recorded = identity is not None and bool(spec_of(identity).get("nodeUID"))
            needed = deleted or self.records_nodes or recorded
        return (("", obj["metadata"]["name"]),) if needed else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        identity, node = views[PLURAL].get(key[1]), views[NODES].get(key[1])
        if identity is None:
            self._overdue.forget(key)
            return ()
        updated = self._with_record(identity, node)
        if updated is not None:
            return (Update(PLURAL, updated),)
        due = self._due(identity)
        if due is None or node is not None:
            return ()
        deletable = self._overdue.deletable_at(key, due, now)
        return (Delete.of(PLURAL, identity),) if deletable <= now else (Requeue(deletable),)

    def _with_record(self, identity: Obj, node: Obj | None) -> Obj | None:
        """Return the identity with the record that it should have of the Node; None when it has that one."""
        if self.records_nodes:
            return with_node_recorded(identity, node, reregisters=True) if node is not None else None
        if not was_deleted(identity, node):
            return None
        reregisters = bool(spec_of(identity).get("reregisters"))
        if reregisters and node is not None and not is_terminating(node):
            return with_spec(identity, nodeUID="", reregisters=False, changedAt="", endReason="")
        if reregisters is self.deletion_ends_membership:
            return with_spec(identity, reregisters=not self.deletion_ends_membership)
        return None

    def _due(self, identity: Obj) -> datetime | None:
        """Return when no machine can use the identity any more; None when that cannot be told."""
        keys, spec = keys_of(identity), spec_of(identity)
        if spec.get("formerCertificate") or (spec.get("nodeUID") and not keys):
            return None
        silence = int(spec.get("silenceSeconds") or 0)
        certificates = (*keys, *companions_of(identity), *certified_names_of(identity))
        if silence and certificates:
            return _last_end(certificates)
        begin = keys[-1].get("notAfter") if keys else identity["metadata"].get("creationTimestamp")
        try:
            return parse_rfc3339(begin or "") + (KEPT_FOR if keys else ephemeral_life(silence, self.signing_duration))
        except (ValueError, OverflowError):
            return None


def _last_end(records: Iterable[Obj]) -> datetime | None:
    """Return the latest end of these certificates; None when one has no readable end."""
    try:
        return max(parse_rfc3339(one.get("notAfter") or "") for one in records)
    except ValueError:
        return None


# k3s-node-password-controller: ties the Secret of a node password to its Node, and deletes one whose machine never became a Node.
#
# Rules kept here (docs/protocol/k3s.md#node-passwords):
# * The Secret of a Node has an owner reference to it, so that the garbage collector deletes both. The Secret is immutable in its
#   data only.
# * A Secret without a Node is deleted ten minutes after its creation, unless a machine obtained a certificate by its password:
#   the NodeIdentity then records it, and the name stays with that machine. k3s deletes it all the same, and so gives the name
#   away.
# * The delete carries uid and resourceVersion. k3s looks each minute; here the key is planned at the moment when it falls due.

SECRETS = "secrets"
ORPHANED_AFTER = timedelta(minutes=10)
"""Time from the first certificate of a machine to its Node: the container runtime and the kubelet start in between."""


@dataclass(frozen=True, slots=True)
class NodePasswordController:
    """Keeps the Secrets of node passwords."""

    name: str = "k3s-node-password-controller"
    watches: tuple[str, ...] = (SECRETS, NODES, IDENTITIES)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        if plural in (NODES, IDENTITIES):
            name = obj["metadata"]["name"]
            return (("", name),) if views[SECRETS].get(secret_name(name), NAMESPACE) is not None else ()
        name = "" if deleted else node_of(obj)
        return (("", name),) if name else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        secret, node = views[SECRETS].get(secret_name(key[1]), NAMESPACE), views[NODES].get(key[1])
        if secret is None or not node_of(secret) or secret["metadata"].get("deletionTimestamp"):
            return ()
        if node is not None:
            return _owned(secret, node)
        if _is_of_a_member(secret, views[IDENTITIES].get(key[1])):
            return ()
        due = _creation_time(secret)
        if due is None:
            return ()
        due += ORPHANED_AFTER
        return (Delete.of(SECRETS, secret),) if due <= now else (Requeue(due),)


def _owned(secret: Obj, node: Obj) -> Sequence[Action]:
    """Return the action that makes the Node the owner; none when it is.

    A reference to a former Node of the name is replaced: the machine proved its password again before it made this Node.
    """
    metadata = secret["metadata"]
    reference = {"apiVersion": "v1", "kind": "Node", "name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
    present = metadata.get("ownerReferences") or []
    if any(one.get("uid") == reference["uid"] for one in present):
        return ()
    others = [one for one in present if one.get("kind") != "Node"]
    return (Update(SECRETS, {**secret, "metadata": {**metadata, "ownerReferences": [*others, reference]}}),)


def _is_of_a_member(secret: Obj, identity: Obj | None) -> bool:
    """Return true when the password of the Secret has obtained a certificate, and the membership has not ended."""
    if identity is None or was_deleted(identity, None) or not keys_of(identity):
        return False
    return bool(spec_of(identity).get("nodePasswordUID") == secret["metadata"].get("uid"))


def _creation_time(secret: Obj) -> datetime | None:
    try:
        return parse_rfc3339(secret["metadata"].get("creationTimestamp") or "")
    except ValueError:
        return None  # written by another server, since this one sets the time
