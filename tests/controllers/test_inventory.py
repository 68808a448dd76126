"""The inventory of authorized machines: which entry a request fits, the claim, and the approver."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from mooring.api.certificates.requeststate import parsed_request
from mooring.api.view import AllReadable, FixedView, Views, guarded
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.controllers.actions import Action, CheckAccess, Requeue, Retry, Update
from mooring.controllers.certificates.approval import CsrApprover, InventoryApprover
from mooring.controllers.certificates.inventory import MachineIndex, MachineInventory
from mooring.controllers.certificates.issuance import HELD_FOR, CheckResult, Hold, PendingIssue, Reservation
from mooring.pki.keys import generate_key, public_key_der, public_key_fingerprint
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT, KUBE_APISERVER_CLIENT_KUBELET
from mooring.settings.signing import ApprovalSettings
from mooring.trust.nodename import generate_code, proof, verifier
from tests.support.authnhost import configured
from tests.support.plans import HOUR, NOW, moment, plan, thing, views

KEY, OTHER_KEY = generate_key(), generate_key()
PIN, OTHER_PIN = (f"sha256:{public_key_fingerprint(key)}" for key in (KEY, OTHER_KEY))
CODE = generate_code(lambda size: bytes(size))
PROOF = proof(CODE, "n1", public_key_der(KEY))
REQUIRED = MachineInventory(required=True, trusts_source_address=True)


def csr(name: str = "n1", source: str = "192.0.2.7", challenge: str = "", **spec: Any) -> Obj:
    pem = build_request(KEY, f"system:node:{name}", ("system:nodes",), challenge_password=challenge)
    asked = {
        "request": base64.b64encode(pem).decode(),
        "signerName": KUBE_APISERVER_CLIENT_KUBELET,
        "usages": ["digital signature", "client auth"],
        "username": "system:bootstrap:abcdef",
        "groups": ["system:bootstrappers"],
        **spec,
    }
    return thing("join", spec=asked, metadata={"annotations": {"mooring.dev/source-address": source}})


def said(rack: str) -> Obj:
    obj = csr()
    annotations = {**obj["metadata"]["annotations"], "request.mooring.dev/rack": rack}
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}


def machine(name: str = "m1", used: str = "", node: str = "n1", **spec: Any) -> Obj:
    status = {"usedBy": {"publicKey": used, "nodeName": "n1"}} if used else {}
    return thing(name, spec={"nodeName": node, **spec}, status=status)


def checked(
    inventory: MachineInventory, obj: Obj, *machines: Obj, automatic: bool = True, identities: Sequence[Obj] = ()
) -> CheckResult | None:
    pending = PendingIssue(csr=obj, request=parsed_request(obj), now=NOW, automatic=automatic)
    return inventory.check(pending, views(authorizedmachines=machines, nodeidentities=identities))


def claimed(finding: CheckResult | None) -> str:
    """Return the name of the entry that is claimed."""
    assert isinstance(finding, Reservation)
    (update,) = finding.actions
    assert isinstance(update, Update)
    assert (update.plural, update.subresource, update.obj["metadata"]["resourceVersion"]) == (
        "authorizedmachines",
        "",
        "7",
    )
    assert update.obj["status"]["usedBy"] == {
        "publicKey": PIN, "nodeName": "n1", "request": "join", "time": rfc3339(NOW)
    }  # fmt: skip
    name: str = update.obj["metadata"]["name"]
    return name


def reason(finding: CheckResult | None) -> str:
    assert isinstance(finding, Hold)
    assert not finding.denies
    return finding.reason


# -- which entry fits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("obj", "machines", "expected"),
    [
        pytest.param(csr(), [machine()], "m1", id="a name"),
        pytest.param(csr(), [machine(node="n*")], "m1", id="a pattern"),
        pytest.param(csr(), [machine(keyFingerprint=PIN)], "m1", id="a key"),
        pytest.param(csr(challenge=PROOF), [machine(codeVerifier=verifier(CODE))], "m1", id="a code"),
        pytest.param(csr(), [machine(allowedCIDRs=["10.0.0.0/8", "192.0.2.0/24"])], "m1", id="a network"),
        pytest.param(csr(source="::ffff:192.0.2.7"), [machine(allowedCIDRs=["192.0.2.0/24"])], "m1", id="IPv4 in IPv6"),
        pytest.param(
            said("7"), [machine(requestAnnotations={"rack": "7"})], "m1", id="a name, and a fact that it says"
        ),
        pytest.param(
            said("7"), [machine(keyFingerprint=PIN, requestAnnotations={"rack": "7"})], "m1", id="a key, and a fact"
        ),
        pytest.param(
            csr(), [machine("a"), machine("b", keyFingerprint=PIN)], "b", id="an entry that authorizes, before a name"
        ),
        pytest.param(csr(), [machine("a"), machine("b")], "a", id="the first of two equal ones"),
        pytest.param(csr(), [machine("a", used=OTHER_PIN), machine("b")], "b", id="one that is free"),
        pytest.param(
            csr(),
            [machine("a", keyFingerprint=PIN), machine("b", keyFingerprint=PIN)],
            "a",
            id="one of two that authorize",
        ),
    ],
)
def test_a_required_entry_is_claimed(obj: Obj, machines: Sequence[Obj], expected: str) -> None:
    assert claimed(checked(REQUIRED, obj, *machines)) == expected


@pytest.mark.parametrize(
    ("obj", "machines", "expected"),
    [
        pytest.param(csr(), [], "MachineNotListed", id="no entry"),
        pytest.param(csr(), [machine(node="n2"), machine("m2", node="m*")], "MachineNotListed", id="another name"),
        pytest.param(csr(), [machine(keyFingerprint=OTHER_PIN)], "MachineNotListed", id="another key"),
        pytest.param(csr(), [machine(codeVerifier=verifier(CODE))], "MachineNotListed", id="no proof of the code"),
        pytest.param(
            said("8"), [machine(keyFingerprint=PIN, requestAnnotations={"rack": "7"})], "MachineNotListed", id="another fact"
        ),
        pytest.param(
            csr(), [machine(keyFingerprint=PIN, requestAnnotations={"rack": "7"})], "MachineNotListed", id="no fact"
        ),
        pytest.param(
            csr(challenge=PROOF), [machine(codeVerifier=verifier(CODE), keyFingerprint=OTHER_PIN)], "MachineNotListed",
            id="the code, and another key",
        ),
        pytest.param(csr(), [machine(allowedCIDRs=["10.0.0.0/8"])], "MachineNotListed", id="another network"),
        pytest.param(csr(source=""), [machine(allowedCIDRs=["10.0.0.0/8"])], "MachineNotListed", id="an unknown address"),
        pytest.param(
            csr(), [machine(used=OTHER_PIN), machine("m2", used=OTHER_PIN)], "MachineAlreadyUsed", id="entries of another key"
        ),
    ],
)  # fmt: skip
def test_without_a_fitting_entry_a_person_decides(obj: Obj, machines: Sequence[Obj], expected: str) -> None:
    assert reason(checked(REQUIRED, obj, *machines)) == expected
    assert checked(REQUIRED, obj, *machines, automatic=False) is None
    assert checked(MachineInventory(), obj, *machines) is None


@pytest.mark.parametrize("proof", [{}, {"keyFingerprint": PIN}])
def test_where_clients_write_the_address_no_request_comes_from_a_network_of_an_entry(proof: dict[str, str]) -> None:
    """kube-apiserver stores the annotation that the client sends."""
    entry = machine(allowedCIDRs=["192.0.2.0/24"], **proof)
    assert reason(checked(MachineInventory(required=True), csr(), entry)) == "MachineNotListed"
    assert claimed(checked(MachineInventory(required=True), csr(), machine(**proof))) == "m1"
    elsewhere = InventoryApprover((MachineInventory(),), MachineInventory())
    assert planned(elsewhere, csr(), entry) == []


@pytest.mark.parametrize(
    "machines",
    [
        pytest.param([machine(used=PIN)], id="its own"),
        pytest.param([machine("a", used=PIN), machine("b", used=PIN), machine("c", used=OTHER_PIN)], id="several"),
    ],
)
def test_a_key_may_come_again(machines: Sequence[Obj]) -> None:
    assert checked(REQUIRED, csr(), *machines) is None


@pytest.mark.parametrize(
    ("changed", "claimed_at"),
    [
        pytest.param(-2 * HOUR, None, id="the name has not changed hands since"),
        pytest.param(-HOUR / 2, 0 * HOUR, id="the Node was deleted since"),
        pytest.param(HOUR, HOUR, id="by a clock that is ahead of this one"),
    ],
)
def test_a_key_that_comes_again_after_the_name_changed_hands_claims_its_entry_again(
    changed: timedelta, claimed_at: timedelta | None
) -> None:
    entry = machine(used=PIN, keyFingerprint=PIN)
    entry["status"]["usedBy"]["time"] = moment(-HOUR)
    finding = checked(MachineInventory(), csr(), entry, identities=[thing("n1", spec={"changedAt": moment(changed)})])
    if claimed_at is None:
        assert finding is None
    else:
        assert isinstance(finding, Reservation)
        (update,) = finding.actions
        assert isinstance(update, Update)
        assert update.obj["status"]["usedBy"]["time"] == moment(claimed_at)
        again = [thing("n1", spec={"changedAt": moment(claimed_at)})]
        assert checked(MachineInventory(), csr(), update.obj, identities=again) is None, "once"


def test_an_optional_inventory_claims_only_entries_that_authorize() -> None:
    assert checked(MachineInventory(), csr(), machine()) is None
    assert claimed(checked(MachineInventory(), csr(), machine(keyFingerprint=PIN))) == "m1"


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(csr(username="system:node:n1"), id="a node that renews"),
        pytest.param(csr(groups=["system:recovering-nodes"]), id="a machine that recovers"),
        pytest.param(csr(signerName=KUBE_APISERVER_CLIENT), id="another signer"),
    ],
)
def test_requests_that_need_no_entry(obj: Obj) -> None:
    assert checked(REQUIRED, obj) is None


class ChangingView(AllReadable):
    """View of entries whose changes are known."""

    def __init__(self, *entries: Obj) -> None:
        self.entries = {one["metadata"]["name"]: one for one in entries}
        self.revision = 1
        self.since: list[tuple[str, str]] = []

    def get(self, name: str, namespace: str = "") -> Obj | None:
        return self.entries.get(name)

    def list(self, namespace: str = "") -> Sequence[Obj]:
        return [*self.entries.values()]

    def changed(self, since: int) -> Sequence[tuple[str, str]] | None:
        return self.since


def test_the_index_follows_the_entries() -> None:
    view, index = ChangingView(machine("a"), machine("b"), machine("c", node="n*")), MachineIndex()

    def found() -> list[str]:
        return [one["metadata"]["name"] for one in index.candidates("n1", view)]

    assert found() == found() == ["a", "b", "c"]
    view.revision, view.since = 2, [("", "a"), ("", "b"), ("", "c"), ("", "d")]
    view.entries = {"b": machine("b", node="n2"), "d": machine("d")}
    assert found() == ["d"]
    del view.entries["d"]
    assert found() == [], "an entry that the view has lost meanwhile"


def test_an_entry_that_cannot_be_read_authorizes_nobody_and_stops_no_other() -> None:
    view = guarded({"authorizedmachines": FixedView([machine("a")], unreadable={("", "b"): "no key"})})[
        "authorizedmachines"
    ]
    index = MachineIndex()
    for _ in range(2):
        assert [one["metadata"]["name"] for one in index.candidates("n1", view)] == ["a"]


def test_an_entry_that_was_deleted_authorizes_nobody_while_finalizers_hold_it() -> None:
    entry = machine(keyFingerprint=PIN)
    entry["metadata"] |= {"finalizers": ["a.b/c"], "deletionTimestamp": rfc3339(NOW)}
    finding = checked(REQUIRED, csr(), entry)
    assert isinstance(finding, Hold)
    assert finding.reason == "MachineNotListed"


# -- the approver --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FixedCheck:
    finding: CheckResult | None
    name: str = "fixed"
    watches: tuple[str, ...] = ("secrets",)

    def check(self, pending: PendingIssue, views: Views) -> CheckResult | None:
        return self.finding


AUTHORIZED = machine(keyFingerprint=PIN)


def planned(approver: InventoryApprover | CsrApprover, obj: Obj | None, *machines: Obj) -> Sequence[Action]:
    seen = views(certificatesigningrequests=[obj] if obj else [], authorizedmachines=machines)
    return plan(approver, ("", "join"), seen, NOW)


def conditions(action: Action) -> list[tuple[str, str]]:
    assert isinstance(action, Update)
    assert action.subresource == "approval"
    return [(one["type"], one["reason"]) for one in action.obj["status"]["conditions"]]


def test_an_authorized_machine_is_approved_after_its_entry_was_claimed() -> None:
    approver = InventoryApprover((MachineInventory(),))
    assert approver.watches == ("certificatesigningrequests", "authorizedmachines", "nodeidentities")
    claim, requeue = planned(approver, csr(), AUTHORIZED)
    assert requeue == Requeue(NOW)
    assert isinstance(claim, Update)
    (update,) = planned(approver, csr(), claim.obj)
    assert conditions(update) == [("Approved", "AutoApprovedMachine")]


def test_a_name_alone_authorizes_nobody_and_a_new_entry_plans_again() -> None:
    approver = InventoryApprover()
    assert planned(approver, csr(), machine()) == []
    assert list(approver.keys("authorizedmachines", machine(), True, views())) == []
    assert list(approver.keys("authorizedmachines", machine(used=PIN), False, views())) == []
    assert list(approver.keys("authorizedmachines", machine(), False, views())) == [("", "join")]
    assert list(approver.keys("authorizedmachines", machine(), False, views())) == []
    planned(approver, csr())
    assert list(approver.keys("certificatesigningrequests", csr(), True, views())) == []
    assert list(approver.keys("authorizedmachines", machine(), False, views())) == []


def test_a_hold_of_another_check_holds_the_request() -> None:
    approver = InventoryApprover((FixedCheck(Hold("NameTaken", "by another key")),))
    update, requeue = planned(approver, csr(), AUTHORIZED)
    assert conditions(update) == [("NeedsApproval", "NameTaken")]
    assert requeue == Requeue(NOW + HELD_FOR)


RACK_7: Obj = {"requestAnnotations": {"rack": "7"}}
HELD_BY_TOKEN = FixedCheck(Hold("TokenRequiresApproval", "ask a person"))


def told(approver: CsrApprover, obj: Obj, *machines: Obj, allowed: bool) -> tuple[str, Action]:
    """Return the message of the condition that a request gets, "" when it is not written, and when it is planned again."""
    (ask,) = planned(approver, obj, *machines)
    assert isinstance(ask, CheckAccess)
    *updates, again = ask.then(allowed)
    return "".join(message_of(update) for update in updates), again


def message_of(action: Action) -> str:
    assert isinstance(action, Update)
    message: str = action.obj["status"]["conditions"][0]["message"]
    return message


@pytest.mark.parametrize(
    ("obj", "machines", "facts"),
    [
        pytest.param(said("8"), [machine(keyFingerprint=PIN, **RACK_7)], 'rack "8"', id="another value"),
        pytest.param(csr(), [machine(keyFingerprint=PIN, **RACK_7)], "no rack", id="no value"),
        pytest.param(said("8\n"), [machine(keyFingerprint=PIN, **RACK_7)], "no rack", id="a value that is not printed"),
        pytest.param(
            said("8"),
            [machine(keyFingerprint=PIN, requestAnnotations={"rack": "7", "owner": "web", "row": "1"})],
            'no owner, rack "8", no row',
            id="several",
        ),
        pytest.param(
            said("8"), [machine("a", **RACK_7), machine(keyFingerprint=PIN, **RACK_7)], 'rack "8"', id="beside a name"
        ),
        pytest.param(said("8"), [machine(keyFingerprint=PIN, used=PIN, **RACK_7)], 'rack "8"', id="an entry that it has used"),
        pytest.param(said("7"), [machine(keyFingerprint=PIN, **RACK_7)], "", id="the value"),
        pytest.param(said("8"), [], "", id="no entry"),
        pytest.param(said("8"), [machine(**RACK_7)], "", id="an entry that lets no machine in by itself"),
        pytest.param(said("8"), [machine(keyFingerprint=OTHER_PIN, **RACK_7)], "", id="an entry of another machine"),
        pytest.param(said("8"), [machine(keyFingerprint=PIN, used=OTHER_PIN, **RACK_7)], "", id="an entry that another used"),
        pytest.param(
            said("8"), [machine("a", keyFingerprint=PIN), machine(keyFingerprint=PIN, **RACK_7)], "", id="beside one that fits"
        ),
        pytest.param(csr(username="system:node:n1"), [machine(keyFingerprint=PIN, **RACK_7)], "", id="a renewal"),
    ],
)  # fmt: skip
def test_a_request_is_told_that_its_facts_are_not_those_of_its_entry(
    obj: Obj, machines: Sequence[Obj], facts: str
) -> None:
    text = f'the authorized machine "m1" requires other facts: the request has {facts}; ' if facts else ""
    (ask,) = planned(CsrApprover((HELD_BY_TOKEN,), inventory=MachineInventory()), obj, *machines)
    assert isinstance(ask, CheckAccess)
    update, requeue = ask.then(True)
    assert conditions(update) == [("NeedsApproval", "TokenRequiresApproval")]
    assert message_of(update) == f"{text}ask a person"
    assert "7" not in text
    assert requeue == Requeue(NOW + HELD_FOR)


def test_where_entries_are_required_one_of_a_name_alone_is_told() -> None:
    approver = CsrApprover((REQUIRED,), inventory=REQUIRED)
    message, _ = told(approver, said("8"), machine(**RACK_7), allowed=True)
    assert message.startswith(
        'the authorized machine "m1" requires other facts: the request has rack "8"; no authorized machine'
    )


def test_a_denied_request_is_told_why_it_is_denied() -> None:
    approver = CsrApprover(
        (FixedCheck(Hold("Revoked", "the key is revoked", denies=True)),), inventory=MachineInventory()
    )
    (ask,) = planned(approver, said("8"), machine(keyFingerprint=PIN, **RACK_7))
    assert isinstance(ask, CheckAccess)
    (update,) = ask.then(True)
    assert message_of(update) == "the key is revoked"


def test_a_request_without_a_permission_is_told_of_its_entry_for_as_long_as_that_is_there() -> None:
    approver, entry = CsrApprover(inventory=MachineInventory()), machine(keyFingerprint=PIN, **RACK_7)
    assert approver.watches == ("certificatesigningrequests", "authorizedmachines", "nodeidentities")
    message, again = told(approver, said("8"), entry, allowed=False)
    assert message.startswith(
        'the authorized machine "m1" requires other facts: the request has rack "8"; RBAC does not let'
    )
    assert again == Requeue(NOW + HELD_FOR)
    condition = {"type": "NeedsApproval", "reason": "NotGranted", "message": message}
    held = {**said("8"), "status": {"conditions": [condition]}}
    assert told(approver, held, entry, allowed=False) == ("", Requeue(NOW + HELD_FOR)), "once"
    message, again = told(approver, held, allowed=False)
    assert message.startswith("RBAC does not let")
    assert isinstance(again, Retry)
    fits = {**said("7"), "status": held["status"]}
    (update,) = planned(InventoryApprover((FixedCheck(None),)), fits, entry)
    assert conditions(update) == [("Approved", "AutoApprovedMachine")]


def test_the_approver_of_rbac_keeps_the_reason_of_the_other_approver() -> None:
    held = {**csr(), "status": {"conditions": [{"type": "NeedsApproval", "reason": "NameTaken", "message": "x"}]}}
    (ask,) = planned(CsrApprover(), held)
    assert isinstance(ask, CheckAccess)
    (retry,) = ask.then(False)
    assert isinstance(retry, Retry)


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(None, id="a deleted request"),
        pytest.param({**csr(), "status": {"conditions": [{"type": "Denied"}]}}, id="a denied one"),
        pytest.param(csr(username="system:node:n1"), id="one of the node itself"),
        pytest.param(csr(usages=["server auth"]), id="one that the signer would refuse"),
        pytest.param(csr(request="abcde"), id="one that is no request"),
    ],
)
def test_other_requests_are_left_alone(obj: Obj | None) -> None:
    assert planned(InventoryApprover(), obj, AUTHORIZED) == []


def test_only_undecided_requests_of_the_signer_are_planned() -> None:
    approver = InventoryApprover((FixedCheck(None),))
    assert list(approver.keys("certificatesigningrequests", csr(), False, views())) == [("", "join")]
    assert list(approver.keys("certificatesigningrequests", csr(signerName="x.y/z"), False, views())) == []
    assert list(approver.keys("secrets", thing("x"), False, views())) == []


def test_the_setting() -> None:
    assert not configured()[ApprovalSettings].inventory_required
    assert configured(machine_inventory="required")[ApprovalSettings].inventory_required


def test_a_fact_alone_authorizes_no_machine() -> None:
    """Whoever makes a request chooses what it says."""
    match = REQUIRED.match(
        PendingIssue(csr=said("7"), request=parsed_request(said("7")), now=NOW, automatic=True),
        views(authorizedmachines=[machine(requestAnnotations={"rack": "7"})]),
    )
    assert match.entry is not None
    assert not match.authorizes
