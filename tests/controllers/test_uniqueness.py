"""Two machines with one identity: condition, Event, revocation, and the check that holds their requests."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring.uniqueness import CertificateUse, condition_of, newer_uses, with_boot, with_condition, with_use
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Create, Requeue, Update
from mooring.controllers.certificates.issuance import Hold, PendingIssue
from mooring.controllers.uniqueness import LOOK, DuplicateIdentityController, UniqueMachine
from mooring.pki.keys import generate_key
from mooring.pki.x509.requests import build_request, parse_request
from mooring.pki.x509.signers import (
    K3S_KUBE_PROXY_CLIENT,
    K3S_KUBELET_CLIENT,
    KUBE_APISERVER_CLIENT_KUBELET,
    NODE_NAME,
    NODE_PASSWORD,
)
from mooring.settings.nodes import DUPLICATE_POLICIES, END, HOLD, REPORT
from tests.support.plans import HOUR, NOW, enqueued, moment, plan, thing, views

KEY = ("", "n1")
P, C = "sha256:" + "a" * 64, "sha256:" + "b" * 64
KEYS = [
    {"publicKey": P, "serialNumber": "1", "notAfter": moment(HOUR)},
    {"publicKey": C, "serialNumber": "2", "notAfter": moment(HOUR), "parent": P},
]


def identity(*uses: str, **more: Any) -> Obj:
    """Return the identity after these certificates were used, a second apart, an hour ago."""
    obj = thing("n1", spec={"keys": KEYS}, **more)
    for second, certificate in enumerate(uses):
        use = CertificateUse(certificate, certificate, "", "192.0.2.1", NOW - HOUR + timedelta(seconds=second))
        newer = newer_uses(obj, use)
        obj = with_use(obj, use, newer[-1][0]["certificate"] if newer else "") or obj
    return obj


ONE, BACK, TWO = identity(P, C), identity(P, C, P), identity(P, C, P, C)
FOUND = with_condition(TWO, NOW) or {}
ENDED = with_condition(TWO, NOW, ends_both=True) or {}


def node(boot: str, name: str = "n1") -> Obj:
    return thing(name, status={"nodeInfo": {"bootID": boot}})


def revoked(before: timedelta) -> Obj:
    return thing("node-n1", spec={"nodeName": "n1", "issuedBefore": moment(before), "reason": "keyCompromise"})


def kinds(actions: list[Action]) -> list[str]:
    return [f"{type(one).__name__} {getattr(one, 'plural', '')}".strip() for one in actions]


@pytest.mark.parametrize(
    ("seen", "policy", "done"),
    [
        pytest.param(views(), REPORT, [], id="a name without an identity"),
        pytest.param(
            views(nodeidentities=[thing("n1", spec={})], nodes=[node("b")]), REPORT, [], id="a name without an owner"
        ),
        pytest.param(views(nodeidentities=[ONE]), REPORT, [], id="one machine"),
        pytest.param(
            views(nodeidentities=[ONE], nodes=[node("b")]),
            REPORT,
            ["Update nodeidentities"],
            id="the first report of a Node",
        ),
        pytest.param(
            views(nodeidentities=[BACK]),
            END,
            ["Create events", "Update nodeidentities", "Requeue"],
            id="an older state",
        ),
        pytest.param(
            views(nodeidentities=[TWO]), HOLD, ["Create events", "Update nodeidentities", "Requeue"], id="two machines"
        ),
        pytest.param(
            views(nodeidentities=[TWO]),
            END,
            ["Create events", "Update nodeidentities", "Create certificaterevocations", "Requeue"],
            id="two machines that both end",
        ),
        pytest.param(
            views(nodeidentities=[ENDED]),
            END,
            ["Create certificaterevocations", "Requeue"],
            id="two machines that both end, after a crash before the revocation",
        ),
        pytest.param(views(nodeidentities=[ENDED]), REPORT, ["Requeue"], id="the same under another policy"),
        pytest.param(
            views(nodeidentities=[ENDED], certificaterevocations=[revoked(-HOUR)]),
            END,
            ["Update certificaterevocations", "Requeue"],
            id="the same with a revocation from before the finding",
        ),
        pytest.param(
            views(nodeidentities=[ENDED], certificaterevocations=[revoked(timedelta(seconds=1))]),
            END,
            ["Create events", "Update nodeidentities", "Requeue"],
            id="two machines that have both ended",
        ),
        pytest.param(views(nodeidentities=[FOUND]), END, ["Requeue"], id="a finding that is told already"),
        pytest.param(
            views(nodeidentities=[{**FOUND, "spec": {"keys": KEYS[1:]}}]),
            END,
            ["Create events", "Update nodeidentities"],
            id="one that an administrator ended",
        ),
    ],
)
def test_what_is_done(seen: Views, policy: str, done: list[str]) -> None:
    actions = plan(DuplicateIdentityController(policy), KEY, seen)
    # What returned stays evidence while its key is listed.
    assert [one for one in kinds(actions) if done[-1:] == ["Requeue"] or one != "Requeue"] == done
    assert all(one == Requeue(NOW + LOOK) for one in actions if isinstance(one, Requeue))


def test_a_finding_is_told_once_in_the_log_and_in_a_warning_about_the_node() -> None:
    told, update, _ = plan(DuplicateIdentityController(REPORT), KEY, views(nodeidentities=[TWO]))
    assert isinstance(told, Create)
    assert isinstance(update, Update)
    assert (told.obj["type"], told.obj["reason"]) == ("Warning", "DuplicateIdentity")
    assert told.obj["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1"}
    assert BY_PLURAL["events"].validate(told.obj) == []
    assert update.subresource == "status"
    assert update.announcement == f"n1: {told.obj['message']}"
    assert condition_of(update.obj)["status"] == "True"


def test_an_older_state_is_told_as_that() -> None:
    told = plan(DuplicateIdentityController(REPORT), KEY, views(nodeidentities=[BACK]))[0]
    assert isinstance(told, Create)
    assert (told.obj["type"], told.obj["reason"]) == ("Normal", "OlderState")


def test_the_end_of_both_moves_an_entry_that_is_there_to_now() -> None:
    present = thing(
        "node-n1", spec={"nodeName": "n1", "issuedBefore": moment(-HOUR), "reason": "superseded", "expiresAt": "x"}
    )
    seen = views(nodeidentities=[TWO], certificaterevocations=[present])
    action = plan(DuplicateIdentityController(END), KEY, seen)[2]
    assert isinstance(action, Update)
    spec = action.obj["spec"]
    assert (spec["issuedBefore"], spec["reason"], spec["expiresAt"]) == (
        moment(timedelta(seconds=1)),
        "keyCompromise",
        "x",
    )
    assert action.obj["metadata"]["resourceVersion"] == "7"


def test_a_revocation_that_the_finding_has_is_not_made_again() -> None:
    """Two boots of a Node whose certificates nobody recorded stand as a finding after the revocation."""
    obj = {**ENDED, "status": {**ENDED["status"], "certificates": []}}
    for boot in "ABAB":
        obj = with_boot(obj, boot, NOW) or obj
    told = with_condition({**obj, "status": {**obj["status"], "conditions": []}}, NOW, ends_both=True) or {}
    seen = views(nodeidentities=[told], certificaterevocations=[revoked(timedelta(seconds=1))])
    assert kinds(plan(DuplicateIdentityController(END), KEY, seen)) == ["Requeue"]


def test_two_machines_that_report_one_node_are_found_without_a_certificate() -> None:
    controller, obj = DuplicateIdentityController(REPORT), identity(P)
    for step, boot in enumerate("ABAB"):
        seen = views(nodeidentities=[obj], nodes=[node(boot)])
        for action in plan(controller, KEY, seen, NOW + timedelta(minutes=step)):
            obj = action.obj if isinstance(action, Update) else obj
    assert condition_of(obj)["reason"] == "TwoMachinesReport"


@pytest.mark.parametrize(("policy", "status"), [(REPORT, "False"), (HOLD, "True"), (END, "False")])
def test_a_finding_ends_with_the_certificates_unless_requests_wait_for_it(policy: str, status: str) -> None:
    expired = {"keys": [{**key, "notAfter": moment(-HOUR)} for key in KEYS]}
    seen = views(nodeidentities=[{**FOUND, "spec": expired}])
    written = [one for one in plan(DuplicateIdentityController(policy), KEY, seen) if isinstance(one, Update)]
    assert condition_of(written[0].obj if written else FOUND)["status"] == status


def test_a_heartbeat_enqueues_nothing_and_another_boot_does() -> None:
    controller = DuplicateIdentityController(REPORT)
    assert enqueued(controller, views(nodeidentities=[ONE], nodes=[node("A")])) == [KEY, KEY]
    none = views()
    assert controller.keys("nodes", node("A"), False, none) == ()
    assert controller.keys("nodes", node("B"), False, none) == (KEY,)
    assert controller.keys("nodes", node("B"), True, none) == ()
    assert controller.keys("nodes", node("B"), False, none) == (KEY,), "a Node of that name that is made again"
    assert controller.keys("nodeidentities", ONE, True, none) == ()
    assert controller.keys("certificaterevocations", thing("x"), False, none) == ()


def pending(username: str, signer: str = KUBE_APISERVER_CLIENT_KUBELET) -> PendingIssue:
    pem = build_request(generate_key(), "system:node:n1", ("system:nodes",))
    csr = thing("r1", spec={"signerName": signer, "username": username})
    return PendingIssue(csr=csr, request=parse_request(pem), now=NOW, automatic=True)


CREDENTIAL = "authentication.kubernetes.io/credential-id"


@pytest.mark.parametrize(
    ("asked", "held"),
    [
        pytest.param(pending("system:node:n1"), True, id="a renewal"),
        pytest.param(pending("system:recovering-node:n1"), True, id="the way back"),
        pytest.param(pending("system:bootstrap:abcdef"), False, id="a join with a token, about which the name decides"),
        pytest.param(replace(pending("system:node:n1"), automatic=False), False, id="a renewal that a person approved"),
    ],
)
@pytest.mark.parametrize("policy", DUPLICATE_POLICIES)
def test_requests_of_either_machine_wait_for_a_person_by_policy(policy: str, asked: PendingIssue, held: bool) -> None:
    seen = views(nodeidentities=[FOUND])
    finding = UniqueMachine(policy).check(asked, seen)
    assert isinstance(finding, Hold) is (held and policy == HOLD)
    assert UniqueMachine(policy).check(asked, views(nodeidentities=[TWO])) is None, "the condition decides"
    assert UniqueMachine(policy).check(asked, views()) is None


def test_a_held_machine_learns_which_of_the_two_it_is_and_what_helps() -> None:
    asked = pending("system:node:n1")
    asked.csr["spec"]["extra"] = {CREDENTIAL: ["X509SHA256=" + "b" * 64]}
    finding = UniqueMachine(HOLD).check(asked, views(nodeidentities=[FOUND]))
    assert isinstance(finding, Hold)
    assert (finding.reason, finding.denies) == ("DuplicateIdentity", False)
    for part in (
        f"this one has the key {C}",
        "from 192.0.2.1",
        "mooring node split n1 --keep KEY",
        "mooring csr approve r1",
    ):
        assert part in finding.message
    unknown = UniqueMachine(HOLD).check(pending("system:node:n1"), views(nodeidentities=[FOUND]))
    assert isinstance(unknown, Hold)
    assert "which one made this request is not known" in unknown.message


@pytest.mark.parametrize(
    ("user", "signer"),
    [
        pytest.param("system:node:n1", K3S_KUBE_PROXY_CLIENT, id="a certificate of a shared user"),
        pytest.param("system:bootstrap:abcdef", K3S_KUBELET_CLIENT, id="one by a token and the node password"),
    ],
)
def test_requests_by_k3s_way_wait_as_well(user: str, signer: str) -> None:
    asked = pending(user, signer)
    asked.csr["spec"]["extra"] = {NODE_NAME: ["n1"], NODE_PASSWORD: ["uid"]}
    assert isinstance(UniqueMachine(HOLD).check(asked, views(nodeidentities=[FOUND])), Hold)
