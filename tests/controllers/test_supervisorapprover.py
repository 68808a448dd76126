"""The approver of requests that the supervisor made: who has them approved, and which addresses a serving certificate gets."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any

import pytest

from mooring.api.certificates.requeststate import parsed_request
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes, Decision, Ruling
from mooring.controllers.actions import Action, CheckAccess, Create, Requeue, Retry, Update
from mooring.controllers.certificates.approval import SupervisorApprover, would_approve
from mooring.controllers.certificates.issuance import HELD_FOR, CheckResult, Hold, PendingIssue, Reservation
from mooring.controllers.certificates.sanpolicy.check import CertifiedNames
from mooring.controllers.certificates.signing.signer import CsrSigner
from mooring.pki.keys import generate_key
from mooring.pki.x509.bundles import certificates
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import (
    CREDENTIAL,
    K3S_CONTROLLER_CLIENT,
    K3S_KUBE_PROXY_CLIENT,
    K3S_KUBELET_CLIENT,
    K3S_KUBELET_SERVING,
    KUBE_APISERVER_CLIENT_KUBELET,
    NODE_IP,
    NODE_NAME,
    NODE_SIGNERS,
    SUPERVISOR_SIGNERS,
    usages_of,
)
from mooring.settings.signing import SIGNING_DURATION
from mooring.trust.discovery.clusterinfo import config_map
from tests.support.plans import NOW, entropy, plan, thing, views
from tests.support.testca import ThrowawayCA

KEY = generate_key()
CA = ThrowawayCA(now=NOW)
PEM = build_request(KEY, "kubernetes-admin", ("system:masters",), ("api.example.com",), (ip_address("10.96.0.1"),))
NODES = (
    thing("n1", status={"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}),
    thing(
        "n2",
        status={
            "addresses": [
                {"type": "InternalIP", "address": "192.0.2.2"},
                {"type": "InternalDNS", "address": "ip-2.internal"},
            ]
        },
    ),
)
CLUSTER = {
    "configmaps": [config_map("https://api.example.com:6443", b"", others=["https://192.0.2.80:6443"])],
    "services": [thing("kubernetes", "default", spec={"clusterIPs": ["10.96.0.1"]})],
    "endpoints": [thing("kubernetes", "default", subsets=[{"addresses": [{"ip": "192.0.2.9"}]}])],
}
TOKEN = {CREDENTIAL: ["k3s-token"]}


def csr(
    signer: str = K3S_KUBELET_CLIENT,
    *conditions: Obj,
    username: str = "node",
    groups: Sequence[str] = ("k3s:agent",),
    extra: Mapping[str, Sequence[str]] = TOKEN,
    name: str = "n1",
    ips: Sequence[str] = (),
    source: str = "198.51.100.200",
    **spec: Any,
) -> Obj:
    named = {NODE_NAME: [name], **({NODE_IP: list(ips)} if ips and signer in NODE_SIGNERS else {})}
    asked = {
        "request": base64.b64encode(PEM).decode(),
        "signerName": signer,
        "usages": list(usages_of(signer, is_rsa=False)),
        "username": username,
        "groups": list(groups),
        "extra": {**named, **extra},
        **spec,
    }
    noted = {"annotations": {"mooring.dev/source-address": source}}
    return thing("join", spec=asked, status={"conditions": list(conditions)} if conditions else {}, metadata=noted)


def planned(obj: Obj | None, nodes: Sequence[Obj] = NODES, approver: SupervisorApprover | None = None) -> list[Action]:
    seen = views(certificatesigningrequests=[obj] if obj else [], nodes=nodes, **CLUSTER)
    return plan(
        approver
        or SupervisorApprover((CertifiedNames(trusts_source_address=True, signing_duration=SIGNING_DURATION),)),
        ("", "join"),
        seen,
        NOW,
    )


def outcome(actions: Sequence[Action]) -> tuple[str, str]:
    """Return type and reason of the condition that is written."""
    update = actions[0]
    assert isinstance(update, Update)
    assert (update.plural, update.subresource) == ("certificatesigningrequests", "approval")
    condition = update.obj["status"]["conditions"][-1]
    assert condition["message"]
    return condition["type"], condition["reason"]


def result(actions: Sequence[Action]) -> tuple[str, str]:
    """Return the condition that is written, or what is recorded before the approval."""
    first = actions[0]
    if isinstance(first, Create | Update) and first.plural == "nodeidentities":
        assert actions[1:] == [Requeue(NOW)]
        return APPROVED
    return outcome(actions)


APPROVED = ("Approved", "AutoApprovedSupervisor")


@pytest.mark.parametrize("signer", SUPERVISOR_SIGNERS)
@pytest.mark.parametrize("group", ["k3s:agent", "k3s:server"])
def test_a_token_of_the_cluster_has_each_of_its_requests_approved(signer: str, group: str) -> None:
    assert result(planned(csr(signer, groups=[group, "system:authenticated"]))) == APPROVED


@pytest.mark.parametrize(
    ("changes", "approval"),
    [
        pytest.param(
            {"username": "system:bootstrap:abcdef", "groups": ["system:bootstrappers"]}, "nodeclient",
            id="a bootstrap token needs what it needs for kubeadm's way",
        ),
        pytest.param(
            {"username": "system:node:n1", "groups": ["system:nodes"]}, "selfnodeclient", id="a node what renewals need"
        ),
        pytest.param(
            {"username": "jane", "groups": ["k3s:server", "system:bootstrappers"], "extra": {CREDENTIAL: ["x509"]}},
            "nodeclient",
            id="a certificate that names the group of the server token is no server token",
        ),
    ],
)  # fmt: skip
def test_others_need_a_permission(changes: Any, approval: str) -> None:
    (check,) = planned(csr(**changes))
    assert isinstance(check, CheckAccess)
    asked = check.review["spec"]
    assert asked["user"] == changes["username"]
    assert asked["resourceAttributes"]["subresource"] == approval
    assert outcome(check.then(True)) == APPROVED
    held = check.then(False)
    assert outcome(held) == ("NeedsApproval", "NotGranted")
    assert isinstance(held[-1], Retry)


@pytest.mark.parametrize(
    ("obj", "why"),
    [
        pytest.param(None, "it is gone", id="a request that is gone"),
        pytest.param(csr(extra={}), "no supervisor made it", id="a request that a client made"),
        pytest.param(csr(K3S_KUBELET_CLIENT, {"type": "Approved"}), "decided", id="one that was decided"),
        pytest.param({**csr(), "status": {"certificate": "eA=="}}, "issued", id="one that was issued"),
        pytest.param(csr(signerName=KUBE_APISERVER_CLIENT_KUBELET), "another signer", id="one for another signer"),
        pytest.param(csr(request="%%%"), "no base64", id="one that is no base64"),
        pytest.param(csr(request="eA=="), "no PEM", id="one that is no request"),
        pytest.param(csr(name=""), "no name", id="one without the name of its node"),
        pytest.param(csr(usages=["client auth"]), "usages", id="one with other usages"),
    ],
)
def test_what_is_left_alone(obj: Obj | None, why: str) -> None:
    assert planned(obj) == [], why


@pytest.mark.parametrize(
    ("changes", "nodes"),
    [
        pytest.param({"ips": ["192.0.2.1", "2001:db8::1"]}, NODES, id="its own, and one that nobody has"),
        pytest.param({"ips": ["127.0.0.1", "198.51.100.1"]}, (), id="those of a machine that is no Node yet"),
        pytest.param(
            {"ips": ["192.0.2.9"]},
            (thing("n1", metadata={"labels": {"node-role.kubernetes.io/control-plane": ""}}),),
            id="that of an API server for a Node with its label",
        ),
    ],
)  # fmt: skip
def test_addresses_that_a_serving_certificate_may_have(changes: Any, nodes: Sequence[Obj]) -> None:
    assert result(planned(csr(K3S_KUBELET_SERVING, **changes), nodes)) == APPROVED


@pytest.mark.parametrize(
    ("changes", "kind", "reason"),
    [
        pytest.param({"ips": ["192.0.2.2"]}, "NeedsApproval", "AddressOfAnotherNode", id="that of another Node"),
        pytest.param({"ips": ["::ffff:192.0.2.2"]}, "NeedsApproval", "AddressOfAnotherNode", id="in another form, too"),
        pytest.param({"ips": ["192.0.2.80"]}, "NeedsApproval", "AddressOfControlPlane", id="that of a balancer"),
        pytest.param({"ips": ["10.96.0.1"]}, "NeedsApproval", "AddressOfControlPlane", id="that of its Service"),
        pytest.param({"name": "api.example.com"}, "NeedsApproval", "AddressOfControlPlane", id="its name"),
        pytest.param({"ips": ["192.0.2.9"]}, "NeedsApproval", "AddressOfControlPlane", id="that of an API server"),
        pytest.param(
            {"ips": ["192.0.2.9"], "source": "192.0.2.9"}, "NeedsApproval", "AddressOfControlPlane",
            id="that of an API server, from this address: a balancer on its machine makes all clients come from there",
        ),
        pytest.param({"ips": ["0.0.0.0"]}, "Denied", "InvalidAddress", id="none"),
        pytest.param({"ips": ["224.0.0.1"]}, "Denied", "InvalidAddress", id="that of a group"),
        pytest.param({"ips": ["127.0.0.2"]}, "Denied", "ReservedName", id="another one of loopback"),
        pytest.param({"name": "*.example.com"}, "Denied", "WildcardName", id="a wildcard"),
        *(
            pytest.param({"name": name}, "Denied", "ReservedName", id=f"the name {name}")
            for name in ("kubernetes", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost")
        ),
        pytest.param({"name": "192.0.2.10"}, "Denied", "InvalidName", id="an address as its name"),
        pytest.param({"name": "ip-2.internal"}, "NeedsApproval", "AddressOfAnotherNode", id="a name that another Node reports"),
        pytest.param({"ips": [f"198.51.100.{n}" for n in range(32)]}, "Denied", "TooManyNames", id="too many"),
    ],
)  # fmt: skip
def test_addresses_that_it_may_not_have(changes: Any, kind: str, reason: str) -> None:
    actions = planned(csr(K3S_KUBELET_SERVING, **changes))
    assert outcome(actions) == (kind, reason)
    assert actions[1:] == ([Requeue(NOW + HELD_FOR)] if kind == "NeedsApproval" else [])


@pytest.mark.parametrize(
    "found", [Hold("NodeNameTaken", "another key"), Reservation((Create("nodeidentities", thing("n1")),))]
)
def test_the_issuance_checks_come_last(found: CheckResult) -> None:
    class Check:
        name = "check"
        watches = ("nodeidentities",)

        def check(self, pending: PendingIssue, seen: Views) -> CheckResult | None:
            assert pending.automatic
            assert pending.request.common_name == "system:node:n1"
            return found

    approver = SupervisorApprover((Check(),))
    assert approver.watches == ("certificatesigningrequests", "nodeidentities")
    actions = planned(csr(), approver=approver)
    if isinstance(found, Hold):
        assert outcome(actions) == ("NeedsApproval", "NodeNameTaken")
    else:
        assert actions == [*found.actions, Requeue(NOW)]


def test_an_approval_is_judged_again_at_its_commit() -> None:
    holds: list[Hold] = []

    class Check:
        name = "check"
        watches = ()

        def check(self, pending: PendingIssue, seen: Views) -> CheckResult | None:
            return holds[0] if holds else None

    (action,) = planned(csr(), approver=SupervisorApprover((Check(),)))
    assert isinstance(action, Update)
    assert action.precondition is not None
    assert action.precondition(views(), NOW)
    holds.append(Hold("RequesterRevoked", "its token was revoked meanwhile"))
    assert not action.precondition(views(), NOW)


NODE_USER: dict[str, Any] = {
    "username": "system:node:n1",
    "groups": ("system:nodes",),
    "extra": {CREDENTIAL: ["client-certificate"]},
}
JOINER: dict[str, Any] = {
    "username": "system:bootstrap:abcdef",
    "groups": ("g",),
    "extra": {CREDENTIAL: ["bootstrap-token"]},
}


@pytest.mark.parametrize(
    ("obj", "found", "granted", "approved"),
    [
        pytest.param(csr(), None, "", True, id="the token of the cluster"),
        pytest.param(csr(), Hold("Held", "wait"), "", False, id="held"),
        pytest.param(csr(), Hold("Held", "wait", unresolved=("a",)), "", True, id="waits for the address of a name"),
        pytest.param(csr(), Reservation(()), "", True, id="something is recorded first"),
        pytest.param(csr(**JOINER), None, "nodeclient", True, id="a joiner that is granted"),
        pytest.param(csr(**JOINER), None, "selfnodeclient", False, id="a joiner that is not"),
        pytest.param(csr(**NODE_USER), None, "selfnodeclient", True, id="a node"),
    ],
)
def test_a_request_is_judged_before_it_is_written(
    obj: Obj, found: CheckResult | None, granted: str, approved: bool
) -> None:
    class Check:
        name, watches = "check", ()

        def check(self, pending: PendingIssue, seen: Views) -> CheckResult | None:
            return found

    def authorize(asked: Attributes) -> Decision:
        assert (asked.user.username, asked.verb, asked.resource) == (
            obj["spec"]["username"], "create", "certificatesigningrequests",
        )  # fmt: skip
        return Decision(Ruling.ALLOW if asked.subresource == granted else Ruling.NO_OPINION)

    assert would_approve(obj, (Check(),), views(), NOW, authorize) is approved


def test_only_new_requests_of_the_supervisor_are_planned() -> None:
    approver, nothing = SupervisorApprover(), views()
    assert approver.keys("certificatesigningrequests", csr(), False, nothing) == (("", "join"),)
    assert approver.keys("certificatesigningrequests", csr(), True, nothing) == ()
    assert approver.keys("certificatesigningrequests", csr(extra={}), False, nothing) == ()
    assert approver.keys("nodes", NODES[0], False, nothing) == ()


GRANT = {"type": "Approved", "status": "True", "reason": "AutoApprovedSupervisor"}


@pytest.mark.parametrize(
    ("signer", "subject", "names"),
    [
        pytest.param(K3S_KUBELET_CLIENT, "CN=system:node:n1,O=system:nodes", (), id="the client of a kubelet"),
        pytest.param(
            K3S_KUBELET_SERVING,
            "CN=n1,OU=system:node:n1",
            ("n1", "localhost", "127.0.0.1", "192.0.2.1"),
            id="the server of a kubelet",
        ),
        pytest.param(K3S_KUBE_PROXY_CLIENT, "CN=system:kube-proxy,OU=system:node:n1", (), id="kube-proxy"),
        pytest.param(
            K3S_CONTROLLER_CLIENT, "CN=system:k3s-controller,OU=system:node:n1", (), id="the controller of k3s"
        ),
    ],
)
def test_the_certificate_has_the_names_that_the_supervisor_states(
    signer: str, subject: str, names: tuple[str, ...]
) -> None:
    obj = csr(signer, GRANT, ips=["192.0.2.1"] if signer == K3S_KUBELET_SERVING else [])
    controller = CsrSigner(CA.cluster_ca.for_signer, guards_extra=True, signing_duration=SIGNING_DURATION)
    actions = controller.plan(("", "join"), views(certificatesigningrequests=[obj]), NOW, entropy)
    (update,) = (one for one in actions if isinstance(one, Update))
    (leaf,) = certificates(base64.b64decode(update.obj["status"]["certificate"]))
    assert leaf.subject.rfc4514_string() == subject
    request = parsed_request(obj)
    found = (*request.alternative_names.dns, *map(str, request.alternative_names.ips))
    assert found == names


@pytest.mark.parametrize(
    ("obj", "guards_extra"),
    [
        pytest.param(
            csr(K3S_KUBELET_CLIENT, GRANT), False, id="in a cluster whose API server guards no extra attributes"
        ),
        pytest.param(csr(K3S_KUBELET_CLIENT, GRANT, extra={}), True, id="without a supervisor"),
    ],
)
def test_no_certificate_is_signed(obj: Obj, guards_extra: bool) -> None:
    controller = CsrSigner(CA.cluster_ca.for_signer, guards_extra=guards_extra, signing_duration=SIGNING_DURATION)
    actions = list(controller.plan(("", "join"), views(certificatesigningrequests=[obj]), NOW, entropy))
    if guards_extra:
        (update,) = actions
        assert isinstance(update, Update)
        assert update.obj["status"]["conditions"][-1]["type"] == "Failed"
    else:
        assert actions == []
