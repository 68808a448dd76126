"""The Node authorizer: a kubelet's identity, its Node and Lease, its Pods and what they refer to.

Rules kept here (docs/protocol/node-authorization.md; reasons worded as kube-apiserver words them):
1. Only node identities are judged: user `system:node:<name>` in group `system:nodes`. The group without the name is told
   apart as an unknown node.
2. Nodes: get, list and watch of its own only (a list must name it by field selector); create, update and patch, also of status.
   NodeRestriction then refuses every write but to its own.
3. Leases only in kube-node-lease, CSINodes anywhere: its own; `create` carries no name (admission, again).
4. Pods: get of those bound to it; list and watch when the field selector says `spec.nodeName=<itself>`, or names one that is
   bound to it; create, delete, status and eviction, which admission narrows.
5. Secrets and ConfigMaps: get, list and watch of one that a Pod on it refers to. Claims, volumes and attachments: get, likewise;
   the status of a claim may be changed. Service accounts: get, and tokens, of those its Pods run as.
6. ResourceSlices: create; list, watch and deletecollection with the field selector `spec.nodeName=<itself>`.
   PodCertificateRequests: nothing; they are beta and off in Kubernetes 1.36.
7. Everything else follows the static rules of the ClusterRole `system:node`.
8. It never denies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mooring.api.view import FixedView, Views
from mooring.apimachinery.selectors import parse_field_selector
from mooring.authz.attributes import Attributes
from mooring.authz.decision import Decision, Ruling
from mooring.authz.node.graph import NodeGraph
from mooring.authz.node.identifier import node_name
from mooring.authz.rbac.bootstrappolicy.noderules import NODE_RULES
from mooring.authz.rbac.rules import compile_rules
from mooring.errors import BadRequestError

LEASE_NAMESPACE = "kube-node-lease"

_READ = frozenset({"get", "list", "watch"})
_CHANGE = frozenset({"update", "patch"})
_OWN_VERBS = frozenset({"get", "create", "update", "patch", "delete"})
_POD_CHANGES = frozenset(
    {("create", ""), ("delete", ""), ("update", "status"), ("patch", "status"), ("create", "eviction")}
)
_NODE_FIELD = "spec.nodeName"
_OF_SEVERAL = frozenset({"list", "watch", "deletecollection"})
_OF_ONE = frozenset({"get", "update", "patch", "delete"})
_STATIC = compile_rules(NODE_RULES)
_ALLOW = Decision(Ruling.ALLOW)
_NOT_A_NODE = Decision(Ruling.NO_OPINION)
_NO_PODS = FixedView()


class NodeAuthorizer:
    """The `Node` authorization mode. One per process: it keeps its graph."""

    name = "Node"

    def __init__(self) -> None:
        self._graph = NodeGraph()

    def authorize(self, attributes: Attributes, views: Views) -> Decision:
        """Allow, or no opinion with a reason for nodes; no opinion without one for everybody else."""
        node = node_name(attributes.user)
        if node is None:
            return _NOT_A_NODE
        if not node:
            return _no(f'unknown node for user "{attributes.user.username}"')
        judge = _JUDGES.get((attributes.group, attributes.resource))
        if judge is not None:
            return judge(node, attributes, lambda: self._related(node, attributes, views))
        if any(rule.allows(attributes) for rule in _STATIC):
            return _ALLOW
        return _no("")

    def _related(self, node: str, attributes: Attributes, views: Views) -> Decision:
        """Whether a Pod on the node is, or refers to, the object asked for."""
        if not attributes.name:
            return _no("No Object name found")
        target = (attributes.resource, attributes.namespace, attributes.name)
        if self._graph.related(node, target, views.get("pods", _NO_PODS)):
            return _ALLOW
        return _no(f"no relationship found between node '{node}' and this object")


Related = Callable[[], Decision]


def _node(node: str, attributes: Attributes, related: Related) -> Decision:
    verb, name = attributes.verb, attributes.name
    if verb in _READ and not attributes.subresource:
        if name == node:
            return _ALLOW
        if not name:
            return _no(f"node '{node}' cannot read all nodes, only its own Node object")
        return _no(f"node '{node}' cannot read '{name}', only its own Node object")
    if (verb, attributes.subresource) == ("create", ""):
        return _ALLOW
    return _ALLOW if verb in _CHANGE and attributes.subresource in ("", "status") else _no("")


def _lease(node: str, attributes: Attributes, related: Related) -> Decision:
    if attributes.subresource or attributes.verb not in _OWN_VERBS:
        return _no("can only get, create, update, patch, or delete a node lease")
    if attributes.namespace != LEASE_NAMESPACE:
        return _no(f'can only access leases in the "{LEASE_NAMESPACE}" system namespace')
    if attributes.verb != "create" and attributes.name != node:
        return _no("can only access node lease with the same name as the requesting node")
    return _ALLOW


def _csi_node(node: str, attributes: Attributes, related: Related) -> Decision:
    if attributes.verb not in _OWN_VERBS:
        return _no("can only get, create, update, patch, or delete a CSINode")
    if attributes.subresource:
        return _no("cannot authorize CSINode subresources")
    if attributes.verb != "create" and attributes.name != node:
        return _no("can only access CSINode with the same name as the requesting node")
    return _ALLOW


def _pod(node: str, attributes: Attributes, related: Related) -> Decision:
    verb, subresource = attributes.verb, attributes.subresource
    if (verb, subresource) in _POD_CHANGES:
        return _ALLOW
    if subresource or verb not in _READ:
        return _no("")
    if verb == "get":
        return related()
    if _selected(attributes.field_selector, _NODE_FIELD) == node:
        return _ALLOW
    return related() if attributes.name else _no("can only list/watch pods with spec.nodeName field selector")


def _read(node: str, attributes: Attributes, related: Related) -> Decision:
    if attributes.verb not in _READ:
        return _no("can only read resources of this type")
    if attributes.subresource:
        return _no("cannot read subresource")
    if not attributes.namespace:
        return _no("can only read namespaced object of this type")
    return related()


def _get(node: str, attributes: Attributes, related: Related) -> Decision:
    if attributes.verb != "get":
        return _no("can only get individual resources of this type")
    if attributes.subresource:
        return _no("cannot get subresource")
    return related()


def _claim(node: str, attributes: Attributes, related: Related) -> Decision:
    if attributes.subresource != "status":
        return _get(node, attributes, related)
    return related() if attributes.verb in _CHANGE else _no("can only get/update/patch this type")


def _service_account(node: str, attributes: Attributes, related: Related) -> Decision:
    if attributes.verb == "get" and not attributes.subresource:
        return _read(node, attributes, related)
    if attributes.verb != "create" or not attributes.name:
        return _no("can only create tokens for individual service accounts")
    if attributes.subresource != "token":
        return _no("can only create token subresource of serviceaccount")
    return related()


def _slice(node: str, attributes: Attributes, related: Related) -> Decision:
    if attributes.subresource:
        return _no("cannot authorize ResourceSlice subresources")
    if attributes.verb == "create":
        return _ALLOW
    if attributes.verb in _OF_ONE:
        return related()
    if attributes.verb not in _OF_SEVERAL:
        return _no(
            "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, "
            "deletecollection"
        )
    if _selected(attributes.field_selector, _NODE_FIELD) == node:
        return _ALLOW
    return _no("can only list/watch/deletecollection resourceslices with nodeName field selector")


_JUDGES: Mapping[tuple[str, str], Callable[[str, Attributes, Related], Decision]] = {
    ("", "nodes"): _node,
    ("", "pods"): _pod,
    ("", "secrets"): _read,
    ("", "configmaps"): _read,
    ("", "serviceaccounts"): _service_account,
    ("", "persistentvolumeclaims"): _claim,
    ("", "persistentvolumes"): _get,
    ("coordination.k8s.io", "leases"): _lease,
    ("storage.k8s.io", "csinodes"): _csi_node,
    ("storage.k8s.io", "volumeattachments"): _get,
    ("resource.k8s.io", "resourceclaims"): _get,
    ("resource.k8s.io", "resourceslices"): _slice,
}


def _selected(selector: str, field: str) -> str | None:
    try:
        return parse_field_selector(selector).requires(field)
    except BadRequestError:  # a review may carry any text
        return None


def _no(reason: str) -> Decision:
    return Decision(Ruling.NO_OPINION, reason)
