"""pod-garbage-collector-controller: lets Pods go whose node is not there to stop them.

Rules kept here (Kubernetes documentation "Pod Lifecycle", garbage collection of Pods):
* A deleted Pod waits for its node. When its time is over and there is no Node of that name, nobody will come: it is deleted with
  no time left, so that its namespace can go, too. A Node that is there is waited for, however long.
* The reference also ends Pods that nobody deleted, when their node is gone. Here nothing runs Pods and nothing replaces them: those
  are left to whoever made them.
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
    """Deletes Pods that wait for a node in vain."""

    name: str = "pod-garbage-collector-controller"
    watches: tuple[str, ...] = (PODS, NODES)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        if plural == PODS:
            return list(_waiting([obj])) if not deleted else ()
        node = obj["metadata"]["name"]
        return list(_waiting(pod for pod in views[PODS].list() if _node(pod) == node)) if deleted else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        namespace, name = key
        pod = views[PODS].get(name, namespace)
        if pod is None or not any(_waiting([pod])) or views[NODES].get(_node(pod)) is not None:
            return ()
        metadata = pod["metadata"]
        over = parse_rfc3339(metadata["deletionTimestamp"])
        if over > now:
            return (Requeue(over),)
        return (Delete(PODS, namespace, name, metadata["uid"], metadata["resourceVersion"], grace_seconds=0),)


def _waiting(pods: Iterable[Obj]) -> Iterator[Key]:
    """Those that were deleted and have time left, which only their node may end."""
    for pod in pods:
        metadata = pod["metadata"]
        if metadata.get("deletionTimestamp") and metadata.get("deletionGracePeriodSeconds"):
            yield metadata["namespace"], metadata["name"]


def _node(pod: Obj) -> str:
    name: str = (pod.get("spec") or {}).get("nodeName", "")
    return name
