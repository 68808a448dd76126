"""pod-garbage-collector-controller: removes deleted Pods whose node no longer exists.

Rules kept here (Kubernetes documentation "Pod Lifecycle", garbage collection of Pods):
* A deleted Pod waits until its node stops it. When its grace period is over and no Node of that name exists, the Pod is deleted
  with grace period 0, so that its namespace can be removed, too. An existing Node is waited for without limit.
* kube-controller-manager also deletes running Pods of missing nodes. Here no workload controller replaces Pods, so those are left
  to their owners.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339
from mooring.controllers.actions import Action, Delete, Entropy, Key, Requeue

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
