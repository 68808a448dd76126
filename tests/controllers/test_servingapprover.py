"""The approver of kubelets' serving certificates: who asks, and whether each name and address is the Node's alone."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import pytest

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Create, Requeue, Resolve, Update
from mooring.controllers.certificates.approval import ServingApprover
from mooring.controllers.certificates.issuance import HELD_FOR, CheckResult, Hold, PendingIssue, Reservation
from mooring.controllers.certificates.sanpolicy.check import CertifiedNames
from mooring.controllers.certificates.sanpolicy.rules import MAX_NAMES
from mooring.pki.keys import generate_key
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import KUBELET_SERVING
from mooring.settings.signing import SIGNING_DURATION
from mooring.trust.discovery.clusterinfo import config_map
from tests.support.plans import HOUR, NOW, moment, plan, thing, views

KEY = generate_key()
USAGES = ("digital signature", "server auth")
OWN_DNS, OWN_IPS = ("n1",), ("192.0.2.1",)


def csr(
    dns: Sequence[str] = OWN_DNS,
    ips: Sequence[str] = OWN_IPS,
    *conditions: Obj,
    cn: str = "system:node:n1",
    username: str = "system:node:n1",
    groups: Sequence[str] = ("system:nodes", "system:authenticated"),
    usages: Sequence[str] = USAGES,
    **spec: Any,
) -> Obj:
    pem = build_request(KEY, cn, ("system:nodes",), dns, tuple(map(ip_address, ips)))
    asked = {
        "request": base64.b64encode(pem).decode(),
        "signerName": KUBELET_SERVING,
        "usages": list(usages),
        "username": username,
        "groups": list(groups),
        **spec,
    }
    return thing("join", spec=asked, status={"conditions": list(conditions)} if conditions else {})


def identity(name: str = "n1", *names: str, after: timedelta = HOUR * 24 * 400) -> Obj:
    """Return the identity of a machine that has a certificate for these names."""
    return thing(name, spec={"certifiedNames": [{"name": one, "notAfter": moment(after)} for one in names]})


RECORDED = identity("n1", "n1", "192.0.2.1", "n1.example.com")
NAMES = CertifiedNames(trusts_source_address=True, signing_duration=SIGNING_DURATION)


def node(name: str = "n1", *addresses: str, labels: Mapping[str, str] | None = None, **metadata: Any) -> Obj:
    listed = addresses or ("Hostname=n1", "InternalIP=192.0.2.1", "ExternalDNS=N1.example.com")
    reported = [dict(zip(("type", "address"), one.split("="), strict=True)) for one in listed]
    return thing(name, status={"addresses": reported}, metadata={"labels": dict(labels or {}), **metadata})


NODES = (node(), node("n2", "Hostname=n2", "InternalIP=192.0.2.2"))
CLUSTER = {
    "configmaps": [config_map("https://api.example.com:6443", b"", others=["https://192.0.2.80:6443"])],
    "services": [thing("kubernetes", "default", spec={"clusterIPs": ["10.96.0.1"]})],
    "endpoints": [thing("kubernetes", "default", subsets=[{"addresses": [{"ip": "192.0.2.9"}, {"ip": "127.0.0.1"}]}])],
}


def planned(obj: Obj | None, nodes: Sequence[Obj] = NODES, approver: ServingApprover | None = None) -> list[Action]:
    seen = views(certificatesigningrequests=[obj] if obj else [], nodes=nodes, nodeidentities=[RECORDED], **CLUSTER)
    return plan(approver or ServingApprover((NAMES,)), ("", "join"), seen, NOW)


def outcome(actions: Sequence[Action]) -> tuple[str, str]:
    """Return type and reason of the condition that is written."""
    update = actions[0]
    assert isinstance(update, Update)
    assert (update.plural, update.subresource) == ("certificatesigningrequests", "approval")
    condition = update.obj["status"]["conditions"][-1]
    assert condition["message"]
    assert actions[1:] == ([Requeue(NOW + HELD_FOR)] if condition["type"] == "NeedsApproval" else [])
    return condition["type"], condition["reason"]


APPROVED = ("Approved", "AutoApprovedServing")


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(csr(), id="its host name and address"),
        pytest.param(csr(("N1.example.com", "N1"), ()), id="names in another case"),
        pytest.param(csr((), ("192.0.2.1",)), id="an address alone"),
        pytest.param(csr(ips=("::ffff:192.0.2.1",)), id="its address mapped into IPv6"),
        pytest.param(csr(OWN_DNS, OWN_IPS, {"type": "NeedsApproval", "status": "True"}), id="a request that was held"),
    ],
)
def test_names_and_addresses_of_the_node_are_approved(obj: Obj) -> None:
    actions = planned(obj)
    assert outcome(actions) == APPROVED
    assert isinstance(actions[0], Update)
    assert len(actions[0].obj["status"]["conditions"]) == 1


@pytest.mark.parametrize(
    ("obj", "reason"),
    [
        pytest.param(csr(username="system:node:n2"), "RequesterIsAnotherNode", id="another node asks"),
        pytest.param(csr(("*.example.com",)), "WildcardName", id="a wildcard"),
        pytest.param(csr(("n_1",)), "InvalidName", id="no DNS name"),
        pytest.param(csr(("kubernetes.default",)), "ReservedName", id="a name of the API server's Service"),
        pytest.param(csr(("x.y.svc.cluster.local",)), "ReservedName", id="a name of a Service"),
        pytest.param(csr(ips=("0.0.0.0",)), "InvalidAddress", id="the unspecified address"),
        pytest.param(csr(ips=("ff02::1",)), "InvalidAddress", id="a multicast address"),
        pytest.param(csr(tuple(f"n{i}" for i in range(MAX_NAMES))), "TooManyNames", id="too many names"),
        pytest.param(csr(cn="n1"), "NotAServingRequest", id="a common name of no node"),
        pytest.param(csr((), ()), "NotAServingRequest", id="no name at all"),
        pytest.param(csr(usages=("digital signature", "client auth")), "NotAServingRequest", id="usages of a client"),
    ],
)
def test_faults_that_cannot_heal_deny_at_once(obj: Obj, reason: str) -> None:
    assert outcome(planned(obj)) == ("Denied", reason)


@pytest.mark.parametrize(
    ("obj", "nodes", "reason"),
    [
        pytest.param(csr(username="jane", groups=("dev",)), NODES, "RequesterIsNoNode", id="a person asks"),
        pytest.param(
            csr(username="system:bootstrap:abcdef", groups=("system:bootstrappers",)),
            NODES,
            "RequesterIsNoNode",
            id="a bootstrap token asks",
        ),
        pytest.param(csr(groups=("dev",)), NODES, "RequesterIsNoNode", id="a user with a node's name, outside the group"),
        pytest.param(csr(), (), "NodeMissing", id="there is no Node yet"),
        pytest.param(csr(), (node(deletionTimestamp="2026-01-02T00:00:00Z"),), "NodeMissing", id="its Node is being deleted"),
        pytest.param(csr(ips=("192.0.2.6",)), (thing("n1"),), "AddressNotOfNode", id="its Node has reported no address yet"),
        pytest.param(csr(ips=("192.0.2.1", "192.0.2.7")), NODES, "AddressNotOfNode", id="an address of nobody"),
        pytest.param(
            csr(ips=("192.0.2.5",)), (node("n1", "InternalIP=192.0.2.5"), node("n2", "InternalIP=192.0.2.5")),
            "AddressOfAnotherNode", id="an address of two Nodes, none of which has a certificate for it",
        ),
        pytest.param(
            csr(("n2",)), (node("n1", "Hostname=n2", "InternalIP=192.0.2.1"), node("n2", "Hostname=x")), "AddressOfAnotherNode",
            id="the name of another Node, which this one reports",
        ),
        pytest.param(csr(("n7",)), NODES, "NameNotOfNode", id="a name of one label that it does not report"),
        pytest.param(
            csr(("api.example.com",)), (node("n1", "ExternalDNS=api.example.com", "InternalIP=192.0.2.1"),),
            "AddressOfControlPlane", id="the name of the API server",
        ),
        *(
            pytest.param(csr((), (ip,)), (node("n1", f"InternalIP={ip}"),), "AddressOfControlPlane", id=what)
            for ip, what in {
                "192.0.2.80": "another published address of the API server",
                "192.0.2.9": "an endpoint of the API server",
                "10.96.0.1": "the cluster IP of the API server",
            }.items()
        ),
    ],
)  # fmt: skip
def test_faults_that_may_heal_hold_the_request_and_say_why(obj: Obj, nodes: Sequence[Obj], reason: str) -> None:
    assert outcome(planned(obj, nodes)) == ("NeedsApproval", reason)


def test_a_held_request_is_not_written_again_for_the_same_reason() -> None:
    update, _ = planned(csr(), ())
    assert isinstance(update, Update)
    assert planned(update.obj, ()) == [Requeue(NOW + HELD_FOR)]


CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


def test_a_machine_with_an_api_server_may_have_the_address_of_it() -> None:
    addresses = ("InternalIP=192.0.2.9", "InternalIP=192.0.2.80", "InternalIP=10.96.0.1")
    labelled = node("n1", *addresses, labels={CONTROL_PLANE: ""})
    recording, again = planned(csr((), ("192.0.2.9",)), (labelled,))
    assert isinstance(recording, Update)
    assert recording.plural == "nodeidentities"
    assert again == Requeue(NOW)
    for other in ("192.0.2.80", "10.96.0.1"):  # of a balancer, and of the Service
        assert outcome(planned(csr((), (other,)), (labelled,))) == ("NeedsApproval", "AddressOfControlPlane")


# -- names that the DNS knows --------------------------------------------------------------------------------------------


RECORDS = ("certifiedNames", "nodeidentities")


def result(actions: Sequence[Action]) -> tuple[str, str]:
    """Return the condition that is written, or what is recorded before the approval."""
    first = actions[0]
    if isinstance(first, Update) and first.plural == "nodeidentities":
        assert actions[1:] == [Requeue(NOW)]
        return RECORDS
    return outcome(actions)


def resolved(answers: Mapping[str, Sequence[str]], dns: Sequence[str] = ("a.example.com", "n1")) -> list[Action]:
    source = {"annotations": {"mooring.dev/source-address": "192.0.2.1"}}
    obj = csr(dns)
    (ask,) = planned({**obj, "metadata": {**obj["metadata"], **source}})
    assert isinstance(ask, Resolve)
    assert ask.names == tuple(answers)
    return list(ask.then({name: frozenset(map(ip_address, found)) for name, found in answers.items()}))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(["192.0.2.1"], RECORDS, id="its address"),
        pytest.param([], ("NeedsApproval", "NameNotOfNode"), id="no answer"),
        pytest.param(["192.0.2.1", "192.0.2.2"], ("NeedsApproval", "NameNotOfNode"), id="an address of another beside"),
    ],
)
def test_a_name_that_the_node_does_not_report_must_resolve_to_its_addresses(
    answer: list[str], expected: tuple[str, str]
) -> None:
    assert result(resolved({"a.example.com": answer})) == expected


def test_every_name_that_is_not_reported_is_resolved_once() -> None:
    found = {"a.example.com": ["192.0.2.1"], "b.example.com": ["192.0.2.1"]}
    assert result(resolved(found, ("A.example.com", "b.example.com", "a.example.com"))) == RECORDS


# -- events --------------------------------------------------------------------------------------------------------------


def enqueued(approver: ServingApprover, plural: str, obj: Obj, deleted: bool = False) -> list[str]:
    return [name for _, name in approver.keys(plural, obj, deleted, views())]


def test_a_change_of_the_node_plans_its_held_requests_again() -> None:
    approver = ServingApprover()
    assert enqueued(approver, "nodes", node()) == []
    planned(csr(), (), approver)
    assert enqueued(approver, "nodes", node("n2")) == []
    assert enqueued(approver, "nodes", node()) == ["join"]
    assert enqueued(approver, "nodes", node()) == []


@pytest.mark.parametrize("others", [pytest.param(0, id="the last one"), pytest.param(1, id="one of two")])
def test_a_request_that_is_gone_is_not_planned_again(others: int) -> None:
    approver = ServingApprover()
    planned(csr(), (), approver)
    if others:
        other = {**csr(), "metadata": {**csr()["metadata"], "name": "other"}}
        plan(approver, ("", "other"), views(certificatesigningrequests=[other], **CLUSTER), NOW)
    assert enqueued(approver, "certificatesigningrequests", csr(), deleted=True) == []
    assert enqueued(approver, "nodes", node()) == ["other"] * others


@pytest.mark.parametrize(
    ("obj", "concerned"),
    [
        pytest.param(csr(), True, id="an undecided request"),
        pytest.param(csr(OWN_DNS, OWN_IPS, {"type": "NeedsApproval"}), True, id="a held one"),
        pytest.param(csr(OWN_DNS, OWN_IPS, {"type": "Denied"}), False, id="a denied one"),
        pytest.param(csr(signerName="example.com/own"), False, id="one for another signer"),
    ],
)
def test_only_undecided_serving_requests_are_planned(obj: Obj, concerned: bool) -> None:
    approver = ServingApprover()
    assert enqueued(approver, "certificatesigningrequests", obj) == ["join"] * concerned
    assert bool(planned(obj)) == concerned


def test_changes_of_the_control_plane_and_deleted_requests_plan_nothing() -> None:
    assert enqueued(ServingApprover(), "configmaps", thing("x")) == []
    assert planned(None) == []
    assert planned(csr(request="abcde")) == []


# -- issuance checks -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FixedCheck:
    finding: CheckResult | None
    name: str = "fixed"
    watches: tuple[str, ...] = ("secrets",)

    def check(self, pending: PendingIssue, views: Views) -> CheckResult | None:
        return self.finding


CLAIM = Create("configmaps", thing("claim"))


def test_the_issuance_checks_come_last() -> None:
    held = ServingApprover((FixedCheck(Hold("NotYet", "later")),))
    assert "secrets" in held.watches
    assert outcome(planned(csr(), approver=held)) == ("NeedsApproval", "NotYet")
    denied = ServingApprover((FixedCheck(Hold("Never", "no", denies=True)),))
    assert outcome(planned(csr(), approver=denied)) == ("Denied", "Never")
    claiming = ServingApprover((FixedCheck(Reservation((CLAIM,))),))
    assert planned(csr(), approver=claiming) == [CLAIM, Requeue(NOW)]
