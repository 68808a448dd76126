"""The Node authorizer (docs/protocol/node-authorization.md); reasons as kube-apiserver words them."""

from __future__ import annotations

import pytest

from mooring.api.view import FixedView, Views
from mooring.authz.decision import Attributes, Ruling
from mooring.authz.node import NodeAuthorizer
from mooring.identity import UserInfo

NODE = UserInfo("system:node:n1", groups=("system:nodes", "system:authenticated"))
LEASES = {"group": "coordination.k8s.io", "resource": "leases", "namespace": "kube-node-lease"}
CSRS = {"group": "certificates.k8s.io", "resource": "certificatesigningrequests"}


POD = {"resource": "pods", "namespace": "ns"}
SECRETS = {"resource": "secrets", "namespace": "ns"}
CONFIG_MAPS = {"resource": "configmaps", "namespace": "ns"}
ACCOUNTS = {"resource": "serviceaccounts", "namespace": "ns"}
CLAIMS = {"resource": "persistentvolumeclaims", "namespace": "ns"}
CSI_NODES = {"group": "storage.k8s.io", "resource": "csinodes"}
SLICES = {"group": "resource.k8s.io", "resource": "resourceslices"}
TRUST_BUNDLES = {"group": "certificates.k8s.io", "resource": "clustertrustbundles"}
POD_CERTIFICATES = {"group": "certificates.k8s.io", "resource": "podcertificaterequests", "namespace": "ns"}
UNRELATED = "no relationship found between node 'n1' and this object"
VIEWS = {
    "pods": FixedView(
        [
            {
                "metadata": {"name": "mine", "namespace": "ns"},
                "spec": {
                    "nodeName": "n1",
                    "serviceAccountName": "robot",
                    "volumes": [
                        {"name": "s", "secret": {"secretName": "key"}},
                        {"name": "c", "configMap": {"name": "settings"}},
                        {"name": "p", "persistentVolumeClaim": {"claimName": "disk"}},
                    ],
                    "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}],
                },
            },
            {"metadata": {"name": "other", "namespace": "ns"}, "spec": {"nodeName": "n2"}},
            {"metadata": {"name": "unbound", "namespace": "ns"}},
        ]
    ),
    "podcertificaterequests": FixedView(
        [
            {"metadata": {"name": "mine", "namespace": "ns"}, "spec": {"nodeName": "n1"}},
            {"metadata": {"name": "theirs", "namespace": "ns"}, "spec": {"nodeName": "n2"}},
            {"metadata": {"name": "nobody's", "namespace": "ns"}},
        ],
        unreadable={("ns", "lost"): "no key"},
    ),
}


def ask(verb: str, user: UserInfo = NODE, /, **more: str) -> Attributes:
    return Attributes(user=user, verb=verb, **more)


@pytest.mark.parametrize(
    "attributes",
    [
        pytest.param(ask("get", resource="nodes", name="n1"), id="read its own Node"),
        pytest.param(ask("watch", resource="nodes", name="n1"), id="watch its own Node by field selector"),
        pytest.param(ask("create", resource="nodes"), id="create its Node"),
        pytest.param(ask("patch", resource="nodes", name="n1"), id="patch its own Node"),
        pytest.param(ask("patch", resource="nodes", subresource="status", name="n1"), id="patch its own status"),
        pytest.param(ask("create", **LEASES), id="create its Lease"),
        pytest.param(ask("update", name="n1", **LEASES), id="renew its Lease"),
        pytest.param(ask("create", **CSRS), id="ask for a certificate"),
        pytest.param(ask("get", name="csr-1", **CSRS), id="read a certificate request"),
        pytest.param(ask("watch", **CSRS), id="watch certificate requests"),
        pytest.param(ask("create", resource="events", namespace="default"), id="report an event"),
        pytest.param(ask("list", resource="services"), id="list services"),
        pytest.param(ask("get", name="mine", **POD), id="read a Pod that runs on it"),
        pytest.param(ask("watch", name="mine", **POD), id="watch one Pod that runs on it"),
        pytest.param(ask("list", resource="pods", field_selector="spec.nodeName=n1"), id="list its Pods"),
        pytest.param(
            ask("watch", resource="pods", field_selector="status.phase!=Failed,spec.nodeName=n1"),
            id="watch some of its Pods",
        ),
        pytest.param(ask("create", **POD), id="create a Pod, which admission narrows"),
        pytest.param(ask("delete", name="mine", **POD), id="delete a Pod, which admission narrows"),
        pytest.param(ask("patch", name="mine", subresource="status", **POD), id="report on a Pod"),
        pytest.param(ask("create", name="mine", subresource="eviction", **POD), id="evict a Pod"),
        pytest.param(
            ask("watch", field_selector="spec.nodeName=n2", name="mine", **POD),
            id="watch its Pod, selected by name and by field",
        ),
        pytest.param(ask("get", name="key", **SECRETS), id="read a Secret its Pod mounts"),
        pytest.param(ask("list", name="key", **SECRETS), id="list one Secret by its name"),
        pytest.param(ask("watch", name="key", **SECRETS), id="watch one Secret by its name"),
        pytest.param(ask("get", name="settings", **CONFIG_MAPS), id="read a ConfigMap its Pod mounts"),
        pytest.param(ask("get", name="robot", **ACCOUNTS), id="read the account its Pod runs as"),
        pytest.param(ask("create", name="robot", subresource="token", **ACCOUNTS), id="make a token for its Pod"),
        pytest.param(ask("get", name="disk", **CLAIMS), id="read a claim of its Pod"),
        pytest.param(ask("patch", name="disk", subresource="status", **CLAIMS), id="report on a claim of its Pod"),
        pytest.param(
            ask("get", group="resource.k8s.io", resource="resourceclaims", namespace="ns", name="gpu"),
            id="read a resource claim of its Pod",
        ),
        pytest.param(ask("create", **CSI_NODES), id="create its CSINode"),
        pytest.param(ask("update", name="n1", **CSI_NODES), id="change its CSINode"),
        pytest.param(ask("create", **SLICES), id="publish a ResourceSlice, which admission narrows"),
        pytest.param(ask("list", field_selector="spec.nodeName=n1", **SLICES), id="list its ResourceSlices"),
        pytest.param(ask("watch", field_selector="spec.nodeName=n1", **SLICES), id="watch its ResourceSlices"),
        pytest.param(
            ask("deletecollection", field_selector="spec.nodeName=n1", **SLICES),
            id="delete its ResourceSlices, as a kubelet does when it starts",
        ),
        pytest.param(
            ask("create", group="events.k8s.io", resource="events", namespace="default"),
            id="report an event in its own group",
        ),
        pytest.param(
            ask("patch", group="events.k8s.io", resource="events", namespace="default", name="e"),
            id="count an event once more in its own group",
        ),
        pytest.param(ask("update", resource="nodes", name="n2"), id="change another Node, which admission refuses"),
        pytest.param(
            ask("patch", resource="nodes", subresource="status", name="n2"),
            id="report on another Node, which admission refuses",
        ),
        pytest.param(ask("create", group="authentication.k8s.io", resource="tokenreviews"), id="review a token"),
        pytest.param(ask("list", **TRUST_BUNDLES), id="list ClusterTrustBundles"),
        pytest.param(ask("create", **POD_CERTIFICATES), id="ask for a Pod's certificate, which admission narrows"),
        pytest.param(ask("get", name="mine", **POD_CERTIFICATES), id="read a request for a Pod on it"),
        pytest.param(
            ask("list", field_selector="spec.nodeName=n1", **POD_CERTIFICATES), id="list the requests for its Pods"
        ),
        pytest.param(
            ask("watch", field_selector="spec.nodeName=n1", **{**POD_CERTIFICATES, "namespace": ""}),
            id="watch the requests for its Pods in all namespaces",
        ),
    ],
)
def test_a_node_may(attributes: Attributes) -> None:
    assert NodeAuthorizer().authorize(attributes, VIEWS).allowed


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        pytest.param(
            ask("get", resource="nodes", name="n2"),
            "node 'n1' cannot read 'n2', only its own Node object",
            id="read another Node",
        ),
        pytest.param(
            ask("list", resource="nodes"),
            "node 'n1' cannot read all nodes, only its own Node object",
            id="list all Nodes",
        ),
        pytest.param(ask("delete", resource="nodes", name="n1"), "", id="delete its Node"),
        pytest.param(ask("create", resource="nodes", subresource="proxy"), "", id="proxy through a Node"),
        pytest.param(
            ask("get", resource="nodes", subresource="proxy", name="n1"), "", id="read a subresource of its Node"
        ),
        pytest.param(
            ask("update", name="n2", **LEASES),
            "can only access node lease with the same name as the requesting node",
            id="renew another Lease",
        ),
        pytest.param(
            ask("update", name="n1", **{**LEASES, "namespace": "kube-system"}),
            'can only access leases in the "kube-node-lease" system namespace',
            id="touch a Lease elsewhere",
        ),
        pytest.param(
            ask("list", **LEASES), "can only get, create, update, patch, or delete a node lease", id="list Leases"
        ),
        pytest.param(
            ask("create", subresource="x", **LEASES),
            "can only get, create, update, patch, or delete a node lease",
            id="a subresource of a Lease",
        ),
        pytest.param(ask("get", name="other", **SECRETS), UNRELATED, id="read a Secret that none of its Pods uses"),
        pytest.param(
            ask("get", **{**SECRETS, "namespace": "ns2"}, name="key"), UNRELATED, id="read its namesake elsewhere"
        ),
        pytest.param(ask("list", **SECRETS), "No Object name found", id="list Secrets"),
        pytest.param(
            ask("update", name="key", **SECRETS),
            "can only read resources of this type",
            id="change a Secret of its Pod",
        ),
        pytest.param(
            ask("get", name="key", subresource="x", **SECRETS), "cannot read subresource", id="read a part of a Secret"
        ),
        pytest.param(
            ask("get", resource="secrets", name="key"),
            "can only read namespaced object of this type",
            id="read a Secret of no namespace",
        ),
        pytest.param(ask("get", name="settings", **SECRETS), UNRELATED, id="take a ConfigMap's name for a Secret's"),
        pytest.param(
            ask("create", name="other", subresource="token", **ACCOUNTS), UNRELATED, id="make a token for another's Pod"
        ),
        pytest.param(
            ask("create", subresource="token", **ACCOUNTS),
            "can only create tokens for individual service accounts",
            id="make tokens for everybody",
        ),
        pytest.param(
            ask("create", name="robot", **ACCOUNTS),
            "can only create token subresource of serviceaccount",
            id="create an account",
        ),
        pytest.param(
            ask("list", **ACCOUNTS), "can only create tokens for individual service accounts", id="list accounts"
        ),
        pytest.param(
            ask("list", name="disk", **CLAIMS), "can only get individual resources of this type", id="list claims"
        ),
        pytest.param(
            ask("get", name="disk", subresource="x", **CLAIMS), "cannot get subresource", id="read a part of a claim"
        ),
        pytest.param(
            ask("get", name="disk", subresource="status", **CLAIMS),
            "can only get/update/patch this type",
            id="read the status of a claim",
        ),
        pytest.param(ask("get", resource="persistentvolumes", name="v"), UNRELATED, id="read a volume"),
        pytest.param(
            ask("list", **CSI_NODES), "can only get, create, update, patch, or delete a CSINode", id="list CSINodes"
        ),
        pytest.param(
            ask("get", name="n1", subresource="x", **CSI_NODES),
            "cannot authorize CSINode subresources",
            id="read a part of its CSINode",
        ),
        pytest.param(
            ask("delete", name="n2", **CSI_NODES),
            "can only access CSINode with the same name as the requesting node",
            id="delete another CSINode",
        ),
        pytest.param(
            ask("deletecollection", **SLICES),
            "can only list/watch/deletecollection resourceslices with nodeName field selector",
            id="delete everybody's ResourceSlices",
        ),
        pytest.param(
            ask("deletecollection", field_selector="spec.nodeName=n2", **SLICES),
            "can only list/watch/deletecollection resourceslices with nodeName field selector",
            id="delete another node's ResourceSlices",
        ),
        pytest.param(
            ask("list", field_selector="nodeName=n1", **SLICES),
            "can only list/watch/deletecollection resourceslices with nodeName field selector",
            id="list ResourceSlices by a field of an older version",
        ),
        pytest.param(
            ask("approve", name="x", **SLICES),
            "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, "
            "deletecollection",
            id="do anything else with a ResourceSlice",
        ),
        pytest.param(ask("update", **TRUST_BUNDLES), "", id="write ClusterTrustBundles"),
        *(
            pytest.param(ask("get", name=name, **POD_CERTIFICATES), UNRELATED, id=f"read a request {what}")
            for what, name in [
                ("of another node", "theirs"),
                ("of no node", "nobody's"),
                ("that does not exist", "gone"),
                ("that cannot be read", "lost"),
            ]
        ),
        pytest.param(
            ask("get", name="mine", **{**POD_CERTIFICATES, "namespace": "ns2"}),
            UNRELATED,
            id="read a request of its name elsewhere",
        ),
        pytest.param(ask("get", **POD_CERTIFICATES), "No Object name found", id="read a request without its name"),
        *(
            pytest.param(
                ask(verb, field_selector=selector, **POD_CERTIFICATES),
                "can only list/watch podcertificaterequests with nodeName field selector",
                id=f"{verb} requests {what}",
            )
            for verb in ("list", "watch")
            for what, selector in [
                ("of all nodes", ""),
                ("of another node", "spec.nodeName=n2"),
                ("of a signer", "spec.signerName=example.com/pods"),
            ]
        ),
        *(
            pytest.param(
                ask(verb, name="mine", **POD_CERTIFICATES),
                f"nodes may not {verb} podcertificaterequests",
                id=f"{verb} a request",
            )
            for verb in ("update", "patch", "delete", "deletecollection")
        ),
        *(
            pytest.param(
                ask(verb, name="mine", subresource="status", **POD_CERTIFICATES),
                "nodes may not access the status subresource of PodCertificateRequests",
                id=f"{verb} the status of a request",
            )
            for verb in ("get", "update")
        ),
        pytest.param(
            ask("get", resource="serviceaccounts", name="robot"),
            "can only read namespaced object of this type",
            id="read an account of no namespace",
        ),
        pytest.param(ask("update", name="x", **SLICES), UNRELATED, id="change a ResourceSlice"),
        pytest.param(
            ask("create", subresource="x", **SLICES),
            "cannot authorize ResourceSlice subresources",
            id="create a part of a ResourceSlice",
        ),
        pytest.param(
            ask("get", name="other", **POD),
            "no relationship found between node 'n1' and this object",
            id="read a Pod of another node",
        ),
        pytest.param(
            ask("get", name="unbound", **POD),
            "no relationship found between node 'n1' and this object",
            id="read a Pod that waits",
        ),
        pytest.param(
            ask("get", name="gone", **POD),
            "no relationship found between node 'n1' and this object",
            id="learn that a Pod is gone",
        ),
        *(
            pytest.param(
                ask("list", resource="pods", field_selector=selector),
                "can only list/watch pods with spec.nodeName field selector",
                id=f"list Pods {what}",
            )
            for what, selector in [
                ("of all nodes", ""),
                ("of another node", "spec.nodeName=n2"),
                ("of all other nodes", "spec.nodeName!=n1"),
                ("by a selector nobody understands", "spec.nodeName"),
            ]
        ),
        pytest.param(ask("deletecollection", **POD), "", id="delete Pods together"),
        pytest.param(ask("get", name="mine", subresource="log", **POD), "", id="read a log"),
        pytest.param(ask("approve", **CSRS), "", id="approve a certificate"),
        pytest.param(ask("get", path="/metrics"), "", id="read metrics"),
        pytest.param(
            ask("get", UserInfo("robot", groups=("system:nodes",)), resource="nodes", name="n1"),
            'unknown node for user "robot"',
            id="be a node without its name",
        ),
        pytest.param(
            ask("get", UserInfo("system:node:", groups=("system:nodes",)), resource="nodes"),
            'unknown node for user "system:node:"',
            id="be a node with an empty name",
        ),
        pytest.param(
            ask("get", UserInfo("system:node:n1"), resource="nodes", name="n1"), "", id="be a node without its group"
        ),
    ],
)
def test_a_node_may_not(attributes: Attributes, reason: str) -> None:
    decision = NodeAuthorizer().authorize(attributes, VIEWS)
    assert (decision.ruling, decision.reason) == (Ruling.NO_OPINION, reason)


def test_a_node_whose_membership_has_ended_gets_nothing() -> None:
    """A bearer token, or an administrator who impersonates it, may still name the node."""
    held = {"name": "n1", "uid": "u1", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a.b/c"]}
    identity = FixedView([{"metadata": {"name": "n1"}, "spec": {"nodeUID": "u1"}}])
    asked = ask("get", resource="nodes", name="n1")
    for nodes in ([], [{"metadata": held}]):
        decision = NodeAuthorizer().authorize(asked, {**VIEWS, "nodeidentities": identity, "nodes": FixedView(nodes)})
        assert decision.ruling is Ruling.NO_OPINION
        assert "ended the membership" in decision.reason
    member = FixedView([{"metadata": {"name": "n1", "uid": "u1"}}])
    assert NodeAuthorizer().authorize(asked, {**VIEWS, "nodeidentities": identity, "nodes": member}).allowed


UNREADABLE_LIST = FixedView(unreadable={("kube-system", "mooring-ends"): "no key"})
RESTORED = {"node.n1": '{"name": "n1", "uid": "u1"}'}


@pytest.mark.parametrize(
    ("views", "reason"),
    [
        pytest.param(
            {"nodeidentities": FixedView(unreadable={("", "n1"): "no key"})}, "nodeidentities/n1", id="its identity"
        ),
        pytest.param(
            {
                "nodeidentities": FixedView([{"metadata": {"name": "n1"}, "spec": {"nodeUID": "u1"}}]),
                "nodes": FixedView(unreadable={("", "n1"): "no key"}),
            },
            "nodes/n1 cannot be read",
            id="its Node, whose deletion would have ended the membership",
        ),
        pytest.param({"configmaps": UNREADABLE_LIST}, "mooring-ends cannot be read", id="the list of tombstones"),
        pytest.param(
            {
                "configmaps": FixedView(
                    [{"metadata": {"name": "mooring-ends", "namespace": "kube-system"}, "data": RESTORED}]
                )
            },
            "ended the membership",
            id="an end that waits to be settled",
        ),
    ],
)
def test_a_node_whose_membership_cannot_be_read_gets_nothing(views: Views, reason: str) -> None:
    decision = NodeAuthorizer().authorize(ask("get", resource="nodes", name="n1"), {**VIEWS, **views})
    assert decision.ruling is Ruling.NO_OPINION
    assert reason in decision.reason


def test_no_object_is_its_own_without_a_view_of_the_kind() -> None:
    assert not NodeAuthorizer().authorize(ask("get", name="mine", **POD), {}).allowed
    assert not NodeAuthorizer().authorize(ask("get", name="mine", **POD_CERTIFICATES), {}).allowed
