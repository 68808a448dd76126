"""The node authorizer: what a node may read follows from the Pods that are bound to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mooring.api.certificates import podcertificaterequest
from mooring.api.core.poddefaults import references
from mooring.api.core.podvalidation import MIRROR
from mooring.api.mooring.membership import lapse
from mooring.api.objectmeta import spec_of
from mooring.api.view import FixedView, NamespacedName, View, ViewFollower, Views
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.selectors import parse_field_selector
from mooring.authz.decision import Attributes, Decision, Ruling
from mooring.authz.rbac.authorizer import compile_rules
from mooring.authz.rbac.bootstrappolicy import node_rules
from mooring.errors import BadRequestError
from mooring.identity import NODE_PREFIX, NODES, UserInfo

# Node identifier: the node name of a user `system:node:<name>` in group `system:nodes`.
#
# Source: docs/protocol/node-authorization.md#identity.


def node_name(user: UserInfo) -> str | None:
    """Return the node's name; None when the user is not a node; "" when it is in the group without a node's user name."""
    if NODES not in user.groups:
        return None
    return user.username.removeprefix(NODE_PREFIX) if user.username.startswith(NODE_PREFIX) else ""


# Graph of the Node authorizer: edges from objects to the nodes whose Pods refer to them.
#
# Rules kept here (docs/protocol/node-authorization.md#graph):
# 1. Edges lead from a Pod to the node it is bound to, and from every object that the Pod refers to, to that Pod; only within the
#    Pod's namespace. A Pod without a node adds no edges, and edges are removed with their Pod.
# 2. A mirror Pod gives its node access to itself only: nodes create mirror Pods, and must not gain access by that.
# 3. The reference counts, not the existence of the object: a node cannot distinguish a missing Secret from a forbidden one.
# 4. The graph follows the view of Pods: each query takes over the changes since the last one, or rebuilds the graph when the view
#    no longer has them. A query costs two look-ups, however many Pods exist.

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


# Node authorizer: allows a kubelet its own Node, Lease and CSINode, its Pods, and the objects its Pods refer to.
#
# Rules kept here (docs/protocol/node-authorization.md; reasons worded as kube-apiserver's):
# 1. Only node identities are authorized: user `system:node:<name>` in group `system:nodes`. A user in the group without such a
#    name is reported as an unknown node.
# 2. Nodes: get, list and watch of its own only (a list must name it by field selector); create, update and patch, also of status.
#    The admission plugin NodeRestriction then refuses every write but to its own.
# 3. Leases only in kube-node-lease, CSINodes anywhere: its own. `create` carries no name, so NodeRestriction checks that.
# 4. Pods: get of those bound to it; list and watch when the field selector says `spec.nodeName=<itself>`, or names one that is
#    bound to it; create, delete, status and eviction, which NodeRestriction narrows.
# 5. Secrets and ConfigMaps: get, list and watch of one that a Pod on it refers to. Claims, volumes and attachments: get of the
#    same; the status of a claim may be changed. Service accounts of its Pods: get, and create of their tokens.
# 6. ResourceSlices: create; list, watch and deletecollection with the field selector `spec.nodeName=<itself>`.
# 7. PodCertificateRequests: create, which NodeRestriction narrows; get of one that names the node; list and watch with the field
#    selector `spec.nodeName=<itself>`.
# 8. Every other request follows the static rules of the ClusterRole `system:node`.
# 9. A node whose membership has ended, or cannot be read, gets nothing, however it authenticated.
# 10. The authorizer never denies.

LEASE_NAMESPACE = "kube-node-lease"
POD_REQUESTS = podcertificaterequest.PLURAL

_READ_VERBS = frozenset({"get", "list", "watch"})
_UPDATE_VERBS = frozenset({"update", "patch"})
_SINGLE_OBJECT_VERBS = frozenset({"get", "create", "update", "patch", "delete"})
_POD_WRITES = frozenset(
    {("create", ""), ("delete", ""), ("update", "status"), ("patch", "status"), ("create", "eviction")}
)
_NODE_FIELD = "spec.nodeName"
_COLLECTION_VERBS = frozenset({"list", "watch", "deletecollection"})
_OBJECT_VERBS = frozenset({"get", "update", "patch", "delete"})
_ALLOW = Decision(Ruling.ALLOW)
_NOT_A_NODE = Decision(Ruling.NO_OPINION)
_EMPTY = FixedView()


class NodeAuthorizer:
    """The `Node` authorization mode. It has a graph of its own, so one instance serves a process."""

    name = "Node"

    def __init__(self) -> None:
        self._graph = NodeGraph()
        self._rules = compile_rules(node_rules())
        self._last: tuple[UserInfo | None, str | None] = (None, None)
        """Last user and its node, for the same reason as in `mooring.authz.table`."""

    def authorize(self, attributes: Attributes, views: Views) -> Decision:
        """Allow, or have no opinion: with a reason about nodes, without one about other users."""
        user, (last, node) = attributes.user, self._last
        if user is not last:
            node = node_name(user)
            self._last = (user, node)
        if node is None:
            return _NOT_A_NODE
        if not node:
            return _no_opinion(f'unknown node for user "{user.username}"')
        # Before any rule: the certificate of a deleted Node may be valid for long, and must give no rights.
        found = lapse(node, views)
        if found is not None and found.is_undecided:
            return _no_opinion(f"whether node '{node}' is a member cannot be read now: {found.detail}")
        if found is not None:
            return _no_opinion(f"the Node '{node}' was deleted, which ended the membership of this machine")
        authorize = _AUTHORIZE.get((attributes.group, attributes.resource))
        # Objects of other nodes are among these kinds, so the rules that all nodes share do not decide.
        if authorize is not None:
            return authorize(node, attributes, lambda: self._decide_by_graph(node, attributes, views))
        if any(rule.allows(attributes) for rule in self._rules):
            return _ALLOW
        return _no_opinion("")

    def _decide_by_graph(self, node: str, attributes: Attributes, views: Views) -> Decision:
        """Allow when a Pod on the node is, or refers to, the requested object, or when the object is a request of the node."""
        if not attributes.name:
            return _no_opinion("No Object name found")
        target = (attributes.resource, attributes.namespace, attributes.name)
        if self._is_related(node, target, views):
            return _ALLOW
        return _no_opinion(f"no relationship found between node '{node}' and this object")

    def _is_related(self, node: str, target: Target, views: Views) -> bool:
        resource, namespace, name = target
        if resource != POD_REQUESTS:
            return self._graph.related(node, target, views.get("pods", _EMPTY))
        request = views.get(POD_REQUESTS, _EMPTY).get(name, namespace)
        return request is not None and spec_of(request).get("nodeName") == node


GraphDecision = Callable[[], Decision]
"""Decision by the graph, evaluated only when the verb and the subresource are allowed."""


def _authorize_node(node: str, attributes: Attributes, by_graph: GraphDecision) -> Decision:
    verb, name = attributes.verb, attributes.name
    if verb in _READ_VERBS and not attributes.subresource:
        if name == node:
            return _ALLOW
        if not name:
            return _no_opinion(f"node '{node}' cannot read all nodes, only its own Node object")
        return _no_opinion(f"node '{node}' cannot read '{name}', only its own Node object")
    if (verb, attributes.subresource) == ("create", ""):
        return _ALLOW
    return _ALLOW if verb in _UPDATE_VERBS and attributes.subresource in ("", "status") else _no_opinion("")


def _authorize_lease(node: str, attributes: Attributes, by_graph: GraphDecision) -> Decision:
    if attributes.subresource or attributes.verb not in _SINGLE_OBJECT_VERBS:
        return _no_opinion("can only get, create, update, patch, or delete a node lease")
    if attributes.namespace != LEASE_NAMESPACE:
        return _no_opinion(f'can only access leases in the "{LEASE_NAMESPACE}" system namespace')
    if attributes.verb != "create" and attributes.name != node:
        return _no_opinion("can only access node lease with the same name as the requesting node")
    return _ALLOW


def _authorize_csi_node(node: str, attributes: Attributes, by_graph: GraphDecision) -> Decision:
    if attributes.verb not in _SINGLE_OBJECT_VERBS:
        return _no_opinion("can only get, create, update, patch, or delete a CSINode")
    if attributes.subresource:
        return _no_opinion("cannot authorize CSINode subresources")
    if attributes.verb != "create" and attributes.name != node:
        return _no_opinion("can only access CSINode with the same name as the requesting node")
    return _ALLOW


def _authorize_pod(node: str, attributes: Attributes, by_graph: GraphDecision) -> Decision:
    verb, subresource = attributes.verb, attributes.subresource
    if (verb, subresource) in _POD_WRITES:
        return _ALLOW
    if subresource or verb not in _READ_VERBS:
        return _no_opinion("")
    if verb == "get":
        return by_graph()
    if _required_field(attributes.field_selector, _NODE_FIELD) == node:
        return _ALLOW
    return by_graph() if attributes.name else _no_opinion("can only list/watch pods with spec.nodeName field selector")


def _authorize_read(node: str, attributes: Attributes, by_graph: GraphDecision) -> Decision:
    if attributes.verb not in _READ_VERBS:
        return _no_opinion("can only read resources of this type")
    if attributes.subresource:
        return _no_opinion("cannot read subresource")
    if not attributes.namespace:
        return _no_opinion("can only read namespaced object of this type")
    return by_graph()


def _authorize_get(node: str, attributes: Attributes, by_graph: GraphDecision) -> Decision:
    if attributes.verb != "get":
        return _no_opinion("can only get individual resources of this type")
    if attributes.subresource:
        return _no_opinion("cannot get subresource")
    return by_graph()


def _authorize_claim(node: str, attributes: Attributes, by_graph: GraphDecision) -> Decision:
    if attributes.subresource != "status":
        return _authorize_get(node, attributes, by_graph)
    return by_graph() if attributes.verb in _UPDATE_VERBS else _no_opinion("can only get/update/patch this type")


def _authorize_service_account(node: str, attributes: Attributes, by_graph: GraphDecision) -> Decision:
    if attributes.verb == "get" and not attributes.subresource:
        return _authorize_read(node, attributes, by_graph)
    if attributes.verb != "create" or not attributes.name:
        return _no_opinion("can only create tokens for individual service accounts")
    if attributes.subresource != "token":
        return _no_opinion("can only create token subresource of serviceaccount")
    return by_graph()


def _authorize_slice(node: str, attributes: Attributes, by_graph: GraphDecision) -> Decision:
    if attributes.subresource:
        return _no_opinion("cannot authorize ResourceSlice subresources")
    if attributes.verb == "create":
        return _ALLOW
    if attributes.verb in _OBJECT_VERBS:
        return by_graph()
    if attributes.verb not in _COLLECTION_VERBS:
        return _no_opinion(
            "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, "
            "deletecollection"
        )
    if _required_field(attributes.field_selector, _NODE_FIELD) == node:
        return _ALLOW
    return _no_opinion("can only list/watch/deletecollection resourceslices with nodeName field selector")


def _authorize_pod_certificate_request(node: str, attributes: Attributes, by_graph: GraphDecision) -> Decision:
    verb = attributes.verb
    if attributes.subresource:
        return _no_opinion("nodes may not access the status subresource of PodCertificateRequests")
    if verb == "get":
        return by_graph()
    if verb not in ("create", "list", "watch"):
        return _no_opinion(f"nodes may not {verb} podcertificaterequests")
    if verb == "create" or _required_field(attributes.field_selector, _NODE_FIELD) == node:
        return _ALLOW
    return _no_opinion("can only list/watch podcertificaterequests with nodeName field selector")


_AUTHORIZE: Mapping[tuple[str, str], Callable[[str, Attributes, GraphDecision], Decision]] = {
    ("", "nodes"): _authorize_node,
    ("", "pods"): _authorize_pod,
    ("", "secrets"): _authorize_read,
    ("", "configmaps"): _authorize_read,
    ("", "serviceaccounts"): _authorize_service_account,
    ("", "persistentvolumeclaims"): _authorize_claim,
    ("", "persistentvolumes"): _authorize_get,
    (podcertificaterequest.GROUP, POD_REQUESTS): _authorize_pod_certificate_request,
    ("coordination.k8s.io", "leases"): _authorize_lease,
    ("storage.k8s.io", "csinodes"): _authorize_csi_node,
    ("storage.k8s.io", "volumeattachments"): _authorize_get,
    ("resource.k8s.io", "resourceclaims"): _authorize_get,
    ("resource.k8s.io", "resourceslices"): _authorize_slice,
}


def _required_field(selector: str, field: str) -> str | None:
    try:
        return parse_field_selector(selector).requires(field)
    except BadRequestError:  # an access review may carry any text
        return None


def _no_opinion(reason: str) -> Decision:
    return Decision(Ruling.NO_OPINION, reason)
