"""A first Node authorizer: what a kubelet needs to join, to keep its Node and Lease, and to renew its certificate.

Rules kept here (reference/kubernetes.md 6.6), narrower than kube-apiserver's where the object graph is still missing:
1. Only node identities are judged: user `system:node:<name>` in group `system:nodes`. The group without the name is told
   apart as an unknown node.
2. Nodes: get, list and watch of its own only (a list must name it by field selector); create; update and patch of its own
   and its own status. A create carries no name here: that it is its own Node is admission's to check.
3. Leases: only in kube-node-lease, its own; `create` carries no name (admission, again).
4. CertificateSigningRequests: create, get, list, watch.
5. Pods: get of those bound to it; list and watch when the field selector says `spec.nodeName=<itself>`; create, delete, status
   and eviction, which admission narrows. Kinds whose access follows from pods (secrets, configmaps, tokens of service
   accounts, volumes) need the graph, which comes with another issue: no opinion.
6. Everything else follows the static rules of the ClusterRole `system:node`.
7. It never denies.
"""

from __future__ import annotations

from mooring.authz.attributes import Attributes
from mooring.authz.decision import Decision, Ruling
from mooring.authz.nodeidentity import node_name
from mooring.authz.noderules import GRAPH_RESOURCES, NODE_RULES
from mooring.authz.rules import compile_rules
from mooring.errors import BadRequestError
from mooring.kinds.view import Views
from mooring.wire.selectors import parse_field_selector

LEASE_NAMESPACE = "kube-node-lease"

_LEASES = "coordination.k8s.io"
_READ = frozenset({"get", "list", "watch"})
_CHANGE = frozenset({"update", "patch"})
_LEASE_VERBS = frozenset({"get", "update", "patch", "delete"})
_POD_CHANGES = frozenset(
    {("create", ""), ("delete", ""), ("update", "status"), ("patch", "status"), ("create", "eviction")}
)
_STATIC = compile_rules(NODE_RULES)
_ALLOW = Decision(Ruling.ALLOW)
_NOT_A_NODE = Decision(Ruling.NO_OPINION)


class NodeAuthorizer:
    """The `Node` authorization mode."""

    name = "Node"

    def authorize(self, attributes: Attributes, views: Views) -> Decision:
        """Allow, or no opinion with a reason for nodes; no opinion without one for everybody else."""
        node = node_name(attributes.user)
        if node is None:
            return _NOT_A_NODE
        if not node:
            return _no(f'unknown node for user "{attributes.user.username}"')
        resource = (attributes.group, attributes.resource)
        if resource == ("", "nodes"):
            return _node(node, attributes)
        if resource == (_LEASES, "leases"):
            return _lease(node, attributes)
        if resource == ("", "pods"):
            return _pod(node, attributes, views)
        if resource in GRAPH_RESOURCES:
            return _no(f"no relationship found between node '{node}' and this object")
        if any(rule.allows(attributes) for rule in _STATIC):
            return _ALLOW
        return _no("")


def _node(node: str, attributes: Attributes) -> Decision:
    verb, own = attributes.verb, attributes.name == node
    if verb in _READ and not attributes.subresource:
        return _ALLOW if own else _no(f"node '{node}' can read only its own Node object")
    if verb == "create" and not attributes.subresource:
        return _ALLOW
    if verb in _CHANGE and attributes.subresource in ("", "status"):
        return _ALLOW if own else _no(f"node '{node}' can change only its own Node object")
    return _no("")


def _lease(node: str, attributes: Attributes) -> Decision:
    if attributes.subresource or (attributes.verb != "create" and attributes.verb not in _LEASE_VERBS):
        return _no("can only get, create, update, patch, or delete a node lease")
    if attributes.namespace != LEASE_NAMESPACE:
        return _no(f'can only access leases in the "{LEASE_NAMESPACE}" system namespace')
    if attributes.verb != "create" and attributes.name != node:
        return _no("can only access node lease with the same name as the requesting node")
    return _ALLOW


def _pod(node: str, attributes: Attributes, views: Views) -> Decision:
    verb, subresource = attributes.verb, attributes.subresource
    if (verb, subresource) in _POD_CHANGES:
        return _ALLOW
    if subresource or verb not in _READ:
        return _no("")
    if attributes.name:
        pods = views.get("pods")
        pod = None if pods is None else pods.get(attributes.name, attributes.namespace)
        bound = pod is not None and (pod.get("spec") or {}).get("nodeName") == node
        return _ALLOW if bound else _no(f"no relationship found between node '{node}' and this object")
    if verb != "get" and _selected_node(attributes.field_selector) == node:
        return _ALLOW
    return _no("can only list/watch pods with spec.nodeName field selector")


def _selected_node(selector: str) -> str | None:
    try:
        return parse_field_selector(selector).requires("spec.nodeName")
    except BadRequestError:  # a review may carry any text
        return None


def _no(reason: str) -> Decision:
    return Decision(Ruling.NO_OPINION, reason)
