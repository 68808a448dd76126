"""Graph of the Node authorizer: edges from objects to the nodes whose Pods refer to them.

Rules kept here (docs/protocol/node-authorization.md#graph):
1. Edges lead from a Pod to the node it is bound to, and from every object that the Pod refers to, to that Pod; only within the
   Pod's namespace. A Pod without a node adds no edges, and edges are removed with their Pod.
2. A mirror Pod gives its node access to itself only: nodes create mirror Pods, and must not gain access by that.
3. The reference counts, not the existence of the object: a node cannot distinguish a missing Secret from a forbidden one.
4. The graph follows the view of Pods: each query takes over the changes since the last one, or rebuilds the graph when the view no
   longer has them. A query costs two look-ups, however many Pods exist.
"""

from __future__ import annotations

from mooring.api.core.pod.references import references
from mooring.api.core.pod.validation import MIRROR
from mooring.api.view import NamespacedName, View, ViewFollower
from mooring.apimachinery.schema import Obj

PODS = "pods"
Target = tuple[str, str, str]
"""(resource, namespace, name)."""
_NO_EDGES: tuple[str, frozenset[Target]] = ("", frozenset())


class NodeGraph:
    """Edges from objects to nodes, updated incrementally from the view of Pods."""

    def __init__(self) -> None:
        self._follower = ViewFollower()
        self._pods: dict[NamespacedName, tuple[str, frozenset[Target]]] = {}
        self._nodes: dict[Target, dict[str, int]] = {}

    def related(self, node: str, target: Target, pods: View) -> bool:
        """Return true when a Pod on `node` is, or refers to, `target`."""
        self._follow(pods)
        return node in self._nodes.get(target, ())

    def __len__(self) -> int:
        """Number of objects that have edges."""
        return len(self._nodes)

    def _follow(self, view: View) -> None:
        changes = self._follower.changes(view)
        if changes is None:
            return
        start_over, pods = changes
        if start_over:
            self._pods, self._nodes = {}, {}
        for name, pod in pods:
            self._put(name, pod)

    def _put(self, name: NamespacedName, pod: Obj | None) -> None:
        before = self._pods.pop(name, _NO_EDGES)
        now = _edges(name, pod) if pod is not None else _NO_EDGES
        if now[0]:
            self._pods[name] = now
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


def _edges(pod_name: NamespacedName, pod: Obj) -> tuple[str, frozenset[Target]]:
    """Return the node of a Pod, and the objects that the node may access because of the Pod."""
    namespace, name = pod_name
    node: str = (pod.get("spec") or {}).get("nodeName", "")
    if not node:
        return _NO_EDGES
    itself = (PODS, namespace, name)
    if MIRROR in (pod["metadata"].get("annotations") or {}):
        return node, frozenset({itself})
    return node, frozenset({itself, *((resource, namespace, referred) for resource, referred in references(pod))})
