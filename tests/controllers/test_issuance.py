"""Checks before a certificate is issued: the approver and the signer run the same table."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, CheckAccess, Create, Requeue, Update
from mooring.controllers.certificates.approval import CsrApprover
from mooring.controllers.certificates.cleaner import CsrCleaner
from mooring.controllers.certificates.issuance import (
    HELD_FOR,
    HELD_SIZE,
    CheckResult,
    Hold,
    PendingIssue,
    Reservation,
    held_until,
    marked_as_held,
    watched,
)
from mooring.controllers.certificates.signing.signer import CsrSigner
from mooring.pki.keys import generate_key
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT_KUBELET, NODE_NAME
from mooring.settings.signing import SIGNING_DURATION
from tests.support.plans import HOUR, NOW, moment, plan, thing, views
from tests.support.testca import ThrowawayCA

CA = ThrowawayCA(now=NOW)
PEM = build_request(generate_key(), "system:node:n1", ("system:nodes",))
CLAIM = Create("configmaps", thing("claim"))
OTHER_CLAIM = Create("configmaps", thing("other"))
HELD = Hold("NameTaken", "the name n1 belongs to another key; delete the Node")
DENIED = Hold("TokenUsedUp", "the token has made all its joins; create another", denies=True)


@dataclass(frozen=True)
class FixedCheck:
    """A check with one answer, which it gives to automatic approvals, or to all."""

    finding: CheckResult | None
    name: str = "fixed"
    watches: tuple[str, ...] = ("nodes",)
    automatic_only: bool = False

    def check(self, pending: PendingIssue, views: Views) -> CheckResult | None:
        assert pending.signer_name == KUBE_APISERVER_CLIENT_KUBELET
        assert pending.username == "system:bootstrap:abcdef"
        return None if self.automatic_only and not pending.automatic else self.finding


OF_USER = build_request(generate_key(), "jane", ())


def csr(*conditions: Obj) -> Obj:
    spec = {
        "request": base64.b64encode(PEM).decode(),
        "signerName": KUBE_APISERVER_CLIENT_KUBELET,
        "usages": ["digital signature", "client auth"],
        "username": "system:bootstrap:abcdef",
    }
    status = {"conditions": list(conditions)} if conditions else {}
    return thing("join", spec=spec, status=status, metadata={"creationTimestamp": moment(0 * HOUR)})


def condition(kind: str, reason: str = "", message: str = "") -> Obj:
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastUpdateTime": moment(0 * HOUR)}


def approved(obj: Obj, *findings: CheckResult | None) -> Sequence[Action]:
    """Return the actions of the approver after RBAC allowed the request."""
    approver = CsrApprover(tuple(map(FixedCheck, findings)))
    (ask,) = plan(approver, ("", "join"), views(certificatesigningrequests=[obj]), NOW)
    assert isinstance(ask, CheckAccess)
    return ask.then(True)


def signed(obj: Obj, check: FixedCheck) -> Sequence[Action]:
    return plan(
        CsrSigner(CA.cluster_ca.for_signer, checks=(check,), signing_duration=SIGNING_DURATION),
        ("", "join"),
        views(certificatesigningrequests=[obj]),
        NOW,
    )


def conditions(action: Action) -> list[tuple[str, str]]:
    assert isinstance(action, Update)
    return [(one["type"], one["reason"]) for one in action.obj["status"]["conditions"]]


def test_a_request_without_findings_is_approved() -> None:
    (update,) = approved(csr(), None, None)
    assert conditions(update) == [("Approved", "AutoApproved")]


def test_a_hold_keeps_the_request_for_a_person_and_says_why() -> None:
    update, requeue = approved(csr(), HELD)
    assert conditions(update) == [("NeedsApproval", "NameTaken")]
    assert isinstance(update, Update)
    assert update.subresource == "approval"
    assert requeue == Requeue(NOW + HELD_FOR)


@pytest.mark.parametrize(
    ("changes", "machine"),
    [
        pytest.param({}, "node n1 (system:bootstrap:abcdef)", id="a machine that joins with a token"),
        pytest.param({"username": "system:node:n1"}, "node n1", id="a machine that renews"),
        pytest.param({"extra": {NODE_NAME: ["worker"]}}, "node worker", id="a machine that joins k3s's way"),
        pytest.param({"request": base64.b64encode(OF_USER).decode(), "username": "jane"}, "jane", id="a user"),
        pytest.param({"request": "%%%"}, "system:bootstrap:abcdef", id="no base64"),
        pytest.param({"request": "eA=="}, "system:bootstrap:abcdef", id="no request"),
    ],
)
def test_the_log_says_once_which_request_waits_and_why(changes: Obj, machine: str) -> None:
    held = csr()
    held["spec"] |= changes
    (update,) = marked_as_held(held, HELD)
    assert isinstance(update, Update)
    assert update.announcement == (
        f"the certificate request join of {machine} waits for a decision by `mooring csr review`: {HELD.message}"
    )
    assert marked_as_held(update.obj, HELD) == ()
    (again,) = marked_as_held(update.obj, replace(HELD, message="the name belonged to another key"))
    assert isinstance(again, Update)
    assert again.announcement == "", "other words for the same reason"
    (other,) = marked_as_held(update.obj, replace(HELD, reason="Other"))
    assert isinstance(other, Update)
    assert other.announcement


def test_the_log_says_that_a_request_is_denied() -> None:
    (update,) = approved(csr(), replace(HELD, denies=True))
    assert isinstance(update, Update)
    assert update.announcement == (
        f"the certificate request join of node n1 (system:bootstrap:abcdef) is denied: {HELD.message}"
    )


def test_a_held_request_is_not_written_again_for_the_same_reason() -> None:
    held = csr(condition("NeedsApproval", HELD.reason, HELD.message))
    assert approved(held, HELD) == (Requeue(NOW + HELD_FOR),)


def test_a_held_request_is_approved_when_the_hold_is_gone() -> None:
    (update,) = approved(csr(condition("Reviewed"), condition("NeedsApproval", HELD.reason, HELD.message)), None)
    assert conditions(update) == [("Reviewed", ""), ("Approved", "AutoApproved")]


def test_a_hold_that_denies_denies_with_its_reason() -> None:
    (update,) = approved(csr(), DENIED)
    assert conditions(update) == [("Denied", "TokenUsedUp")]


def test_all_claims_are_made_before_the_approval() -> None:
    findings = (Reservation((CLAIM,)), None, Reservation((OTHER_CLAIM,)))
    *claims, approval = approved(csr(), *findings)
    assert claims == [CLAIM, OTHER_CLAIM]
    assert conditions(approval) == [("Approved", "AutoApproved")]


def test_a_refused_request_claims_nothing() -> None:
    update, _ = approved(csr(), Reservation((CLAIM,)), HELD)
    assert conditions(update) == [("NeedsApproval", "NameTaken")]


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        pytest.param("AutoApproved", "Failed", id="fails a request that was approved automatically"),
        pytest.param("KubectlApprove", "certificate", id="leaves the decision of a person alone"),
    ],
)
def test_a_hold_of_automatic_approvals_at_signing(reason: str, outcome: str) -> None:
    *_, update = signed(csr(condition("Approved", reason)), FixedCheck(HELD, automatic_only=True))
    assert isinstance(update, Update)
    status = update.obj["status"]
    assert outcome in status or (status["conditions"][-1]["type"], status["conditions"][-1]["reason"]) == (
        outcome,
        HELD.reason,
    )


def test_the_signer_makes_missing_claims_before_it_signs() -> None:
    actions = signed(csr(condition("Approved", "KubectlApprove")), FixedCheck(Reservation((CLAIM,))))
    assert actions == [CLAIM, Requeue(NOW)]


def test_controllers_watch_the_kinds_of_their_checks_and_plan_requests_only() -> None:
    checks = (FixedCheck(None), FixedCheck(None, watches=("nodes", "secrets")))
    assert watched(checks) == ("certificatesigningrequests", "nodes", "secrets")
    for controller in (
        CsrApprover(checks),
        CsrSigner(CA.cluster_ca.for_signer, checks=checks, signing_duration=SIGNING_DURATION),
    ):
        assert controller.watches == watched(checks)
        assert controller.keys("nodes", thing("n1"), False, views()) == ()


def test_a_request_that_nobody_decides_is_deleted_like_one_without_conditions() -> None:
    held = csr(condition("NeedsApproval", HELD.reason, HELD.message))
    actions = plan(CsrCleaner(), ("", "join"), views(certificatesigningrequests=[held]), NOW)
    assert actions == [Requeue(NOW + 24 * HOUR)]


@pytest.mark.parametrize(("size", "times"), [(600, 1), (HELD_SIZE, 1), (8 * HELD_SIZE + 1, 8)])
def test_a_large_request_is_planned_again_later(size: int, times: int) -> None:
    assert held_until({"spec": {"request": "x" * size}}, NOW) == NOW + times * HELD_FOR
