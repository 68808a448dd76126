"""Which node may touch what, because a Pod that runs on it refers to it.

Source: docs/protocol/node-authorization.md#graph.

Rules kept here:
1. Edges lead from a Pod to the node it is bound to, and from everything the Pod refers to, to that Pod; only ever within the
   Pod's namespace. A Pod that waits for a node gives no edges, and edges go with their Pod.
2. A mirror Pod gives its node nothing but itself: a node makes it, and must not give itself anything by that.
3. What counts is that a Pod says so, not that the object exists: a node cannot tell a Secret that is missing from one it may
   not read.
4. The graph follows the view of Pods: it takes up only what changed since it was asked last, and is built anew when the view
   does not remember that. An answer costs two look-ups, however many Pods there are.
"""

from __future__ import annotations

from mooring.api.core.pod.references import references
from mooring.api.core.pod.validation import MIRROR
from mooring.api.view import View
from mooring.apimachinery.schema import Obj

PODS = "pods"
Target = tuple[str, str, str]
"""(resource, namespace, name)."""
_NOBODY: tuple[str, frozenset[Target]] = ("", frozenset())


class NodeGraph:
    """Edges from objects to nodes. One per process: it keeps what it learned."""

    def __init__(self) -> None:
        self._view: View | None = None
        self._revision = -1
        self._pods: dict[tuple[str, str], tuple[str, frozenset[Target]]] = {}
        self._nodes: dict[Target, dict[str, int]] = {}

    def related(self, node: str, target: Target, pods: View) -> bool:
        """Whether a Pod on `node` is, or refers to, `target`."""
        self._follow(pods)
        return node in self._nodes.get(target, ())

    def __len__(self) -> int:
        """How many objects have edges."""
        return len(self._nodes)

    def _follow(self, view: View) -> None:
        if self._view is view and self._revision == view.revision:
            return
        changed = view.changed(self._revision) if self._view is view else None
        self._view, self._revision = view, view.revision
        if changed is None:
            self._pods, self._nodes = {}, {}
            for pod in view.list():
                metadata = pod["metadata"]
                self._put((metadata.get("namespace", ""), metadata["name"]), pod)
        else:
            for namespace, name in changed:
                self._put((namespace, name), view.get(name, namespace))

    def _put(self, place: tuple[str, str], pod: Obj | None) -> None:
        before = self._pods.pop(place, _NOBODY)
        now = _edges(place, pod) if pod is not None else _NOBODY
        if now[0]:
            self._pods[place] = now
        if now == before:
            return
        for target in now[1]:
            counts = self._nodes.setdefault(target, {})
            counts[now[0]] = counts.get(now[0], 0) + 1
        for target in before[1]:
            counts = self._nodes[target]
            counts[before[0]] -= 1
            if not counts[before[0]]:
                del counts[before[0]]
            if not counts:
                del self._nodes[target]


def _edges(place: tuple[str, str], pod: Obj) -> tuple[str, frozenset[Target]]:
    """The node of a Pod, and what its node may touch because of it."""
    namespace, name = place
    node: str = (pod.get("spec") or {}).get("nodeName", "")
    if not node:
        return _NOBODY
    itself = (PODS, namespace, name)
    if MIRROR in (pod["metadata"].get("annotations") or {}):
        return node, frozenset({itself})
    return node, frozenset({itself, *((resource, namespace, referred) for resource, referred in references(pod))})
