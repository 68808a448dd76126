"""Limits of join rules: what an identity token allows is judged again, and one token lets in one key."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from mooring.api.mooring.joinrule import JUDGED, MAX_JOINS, joins_of
from mooring.api.view import FixedView, Views
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.controllers.actions import Action, CheckAccess, Controller, Create, RecordIssuance, Update
from mooring.controllers.certificates.approval import CsrApprover
from mooring.controllers.certificates.issuance import CheckResult, Hold, PendingIssue, Reservation, joining_silence
from mooring.controllers.certificates.requester import JoinRuleCheck, name_allowance
from mooring.controllers.certificates.sanpolicy.ownership import NameOwnership
from mooring.controllers.certificates.signing.signer import CsrSigner
from mooring.identity import UserInfo, join_rule_name
from mooring.pki.keys import generate_key
from mooring.pki.x509.requests import build_request, parse_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT_KUBELET
from mooring.settings.signing import SIGNING_DURATION
from mooring.trust.bootstraptoken.restrictions import join_record
from mooring.trust.bootstraptoken.token import TokenError
from mooring.trust.joinrule import JoinIdentity, JoinRuleError, read_rule, use_of
from tests.support.plans import HOUR, NOW, plan, thing, token_secret, views
from tests.support.testca import ThrowawayCA

KEY = generate_key()
PEM = build_request(KEY, "system:node:ci-1", ("system:nodes",))
OTHER_NAME = build_request(KEY, "system:node:ci-2", ("system:nodes",))
STRANGER = build_request(generate_key(), "system:node:ci-1", ("system:nodes",))
ISSUER = "https://id.example"
USER = "system:joinrule:ci"


def record(pem: bytes, name: str = "ci-1") -> str:
    return join_record(parse_request(pem).key_fingerprint, f"system:node:{name}")


MACHINE = record(PEM)


def rule(*joins: Obj, deleting: str = "", **spec: Any) -> Obj:
    full = {"issuer": {"url": ISSUER}, "claims": [{"claim": "ref", "value": "x"}], "nodeName": "ci-{run}", **spec}
    metadata = {"deletionTimestamp": deleting} if deleting else {}
    return thing("ci", metadata=metadata, spec=full, status={"joins": list(joins)})


def named(of: Obj, name: str) -> Obj:
    return {**of, "metadata": {**of["metadata"], "name": name}}


def join(jti: str, machine: str, end: timedelta = HOUR) -> Obj:
    return {"use": use_of(ISSUER, jti), "machine": machine, "expires": rfc3339(NOW + end)}


def identity(of: Obj | None = None, jti: str = "a", **changed: Any) -> JoinIdentity:
    found = JoinIdentity(
        rule="ci", digest=read_rule(of or rule()).digest, issuer=ISSUER, subject="s", use=use_of(ISSUER, jti),
        node_name="ci-1", expires=NOW + HOUR,
    )  # fmt: skip
    return replace(found, **changed)


def tombstone_list(*keys: str) -> list[Obj]:
    """Return the ConfigMap of the tombstones that wait to be settled."""
    return (
        [thing("mooring-ends", metadata={"namespace": "kube-system"}, data=dict.fromkeys(keys, "{}"))] if keys else []
    )


def request(stated: JoinIdentity | None = None, pem: bytes = PEM, source: str = "10.1.2.3", user: str = USER) -> Obj:
    extra = {key: list(values) for key, values in (stated or identity()).extra().items()}
    spec = {
        "request": base64.b64encode(pem).decode(), "username": user, "signerName": "x.example/y", "extra": extra,
    }  # fmt: skip
    return thing("join", metadata={"annotations": {"mooring.dev/source-address": source} if source else {}}, spec=spec)


def found(
    *rules: Obj,
    csr: Obj | None = None,
    trusts: bool = True,
    person: bool = False,
    now: datetime = NOW,
    pending_tombstones: Sequence[str] = (),
    seen: Views | None = None,
) -> CheckResult | None:
    csr = csr or request()
    pem = base64.b64decode(csr["spec"]["request"])
    pending = PendingIssue(csr=csr, request=parse_request(pem), now=now, automatic=not person)
    check = JoinRuleCheck(trusts)
    assert check.watches == ("joinrules",)
    return check.check(pending, seen or views(joinrules=rules, configmaps=tombstone_list(*pending_tombstones)))


def written(finding: CheckResult | None) -> Update:
    assert isinstance(finding, Reservation)
    (update,) = finding.actions
    assert isinstance(update, Update)
    assert (update.plural, update.subresource) == ("joinrules", "status")
    assert update.obj["metadata"]["resourceVersion"] == rule()["metadata"]["resourceVersion"]
    return update


def counted(finding: CheckResult | None) -> list[tuple[str, str]]:
    """Return use and machine of the entries that a reservation writes."""
    return [(one["use"], one["machine"]) for one in joins_of(written(finding).obj)]


A, B = use_of(ISSUER, "a"), use_of(ISSUER, "b")


def test_a_rule_that_had_ended_lets_nobody_in_elsewhere_either() -> None:
    """kube-apiserver accepts tokens by the configuration that was printed."""
    made = {**request(), "metadata": {**request()["metadata"], "creationTimestamp": rfc3339(NOW)}}
    ended = rule(expirationTimestamp=rfc3339(NOW))
    hold = found(ended, csr=made)
    assert isinstance(hold, Hold)
    assert (hold.reason, hold.denies) == ("JoinRuleEnded", True)
    assert not isinstance(found(ended, csr=made, person=True), Hold)
    assert not isinstance(found(rule(expirationTimestamp=rfc3339(NOW + HOUR)), csr=made), Hold), (
        "it ended while it waited"
    )


@pytest.mark.parametrize(
    ("rules", "changes"),
    [
        pytest.param([], {"csr": request(user="jane")}, id="another user"),
        pytest.param([rule(join("a", MACHINE))], {}, id="a key that this token has let in already"),
        pytest.param([rule(join("a", MACHINE, -2 * HOUR))], {"now": NOW + 2 * HOUR}, id="and its token has ended"),
        pytest.param([rule(join("a", MACHINE), maxJoins=1)], {}, id="a key that is counted already"),
        pytest.param([rule(join("b", "f" * 64), maxJoins=1)], {"person": True}, id="a person goes beyond the number"),
        pytest.param([rule(join("a", MACHINE), allowedCIDRs=["192.0.2.0/24"])], {"person": True},
                     id="a person takes another network"),
        pytest.param([], {"person": True}, id="a person overlooks that the rule is gone"),
        pytest.param([rule(claims=[])], {"person": True}, id="a person overlooks that the rule cannot be read"),
    ],
)  # fmt: skip
def test_nothing_stands_in_the_way_of(rules: list[Obj], changes: dict[str, Any]) -> None:
    assert found(*rules, **changes) is None


ANY_CI = identity(rule(nodeName="ci-*"), node_name="ci-*")
CA = ThrowawayCA(now=NOW)
LATE = NOW + HOUR + JUDGED + timedelta(seconds=1)


@pytest.mark.parametrize(
    ("rules", "changes", "reason", "denies", "message"),
    [
        pytest.param([], {}, "JoinRuleDeleted", False, "was deleted", id="the rule is gone"),
        pytest.param([rule(deleting="x")], {}, "JoinRuleDeleted", False, "was deleted", id="it is being deleted"),
        pytest.param([rule(claims=[])], {}, "JoinRuleUnreadable", False, "spec.claims", id="a rule with a mistake"),
        pytest.param([rule()], {"csr": request(identity(digest=""))}, "JoinRuleUnreadable", False, "not stated",
                     id="another server states a part"),
        pytest.param([rule()], {"csr": request(identity(node_name=""))}, "JoinRuleUnreadable", False, "not stated",
                     id="another server does not state the name, which would allow every one"),
        pytest.param([rule()], {"csr": request(identity(node_name="ci-*"))}, "JoinRuleUnreadable", False, "not stated",
                     id="another server lets a claim put a star into the name"),
        pytest.param([rule(nodeName="")], {"csr": request(identity(rule(nodeName="")))}, "JoinRuleUnreadable", False,
                     "not stated", id="another server states a name that the rule does not give"),
        pytest.param([rule(audiences=["b"])], {}, "JoinRuleChanged", False, "was changed", id="another audience since"),
        pytest.param([rule(claims=[{"claim": "ref", "value": "y"}])], {}, "JoinRuleChanged", False, "was changed",
                     id="another claim since"),
        pytest.param([rule(join("a", record(STRANGER)))], {}, "IdentityTokenUsed", True, "another key",
                     id="two keys with one token"),
        pytest.param([rule(), named(rule(join("a", record(STRANGER))), "first")], {}, "IdentityTokenUsed", True, "another key",
                     id="a key that joined by another rule with this token"),
        pytest.param([rule(join("a", MACHINE), nodeName="ci-*")], {"csr": request(ANY_CI, OTHER_NAME)},
                     "IdentityTokenUsed", True, "another name", id="one key with two names"),
        pytest.param([rule()], {"now": LATE}, "IdentityTokenExpired", False, "ended at",
                     id="a token whose use may be forgotten by now"),
        pytest.param([rule(requireApproval=True)], {}, "JoinRuleRequiresApproval", False, 'node "ci-1"',
                     id="a person is required"),
        pytest.param([rule(requireApproval=True)], {"now": LATE}, "JoinRuleRequiresApproval", False, 'node "ci-1"',
                     id="a token ends while a person decides"),
        pytest.param([rule(join("b", "f" * 64), maxJoins=1)], {}, "JoinRuleUsedUp", True, "1 machine ", id="used up"),
        pytest.param([rule(join("b", MACHINE), maxJoins=1, nodeName="ci-*")], {"csr": request(ANY_CI, OTHER_NAME)},
                     "JoinRuleUsedUp", True, "1 machine ", id="a second name is another machine"),
        pytest.param([rule(join("b", "f" * 64), maxJoins=1, requireApproval=True)], {}, "JoinRuleUsedUp", True, "1 machine",
                     id="used up, so that no person decides"),
        pytest.param([rule(*(join(f"u{number}", f"{number:064x}") for number in range(MAX_JOINS)))], {}, "JoinRuleFull",
                     False, "1000 machines", id="a full rule"),
        pytest.param([rule()], {"csr": request(identity(node_name="ci-9"))}, "NodeNameNotAllowed", True, '"ci-9"',
                     id="another name than the token gives"),
        pytest.param([rule()], {"csr": request(pem=build_request(KEY, "jane"))}, "NodeNameNotAllowed", True, "only for nodes",
                     id="no node"),
        pytest.param([rule(allowedCIDRs=["192.0.2.0/24"])], {}, "NetworkNotAllowed", True, "came from 10.1.2.3",
                     id="another network"),
        pytest.param([rule(allowedCIDRs=["10.0.0.0/8"])], {"csr": request(source="")}, "SourceUnknown", False, "not known",
                     id="no address"),
        pytest.param([rule(allowedCIDRs=["10.0.0.0/8"])], {"trusts": False}, "SourceUnknown", False, "not known",
                     id="an address that another server let the client write"),
    ],
)  # fmt: skip
def test_an_automatic_approval_meets_a_hold(
    rules: list[Obj], changes: dict[str, Any], reason: str, denies: bool, message: str
) -> None:
    finding = found(*rules, **changes)
    assert isinstance(finding, Hold)
    assert (finding.reason, finding.denies) == (reason, denies)
    assert re.search(message, finding.message)


def test_a_rule_that_cannot_be_read_holds_its_requests() -> None:
    seen = {**views(), "joinrules": FixedView(unreadable={("", "ci"): "the key is missing"})}
    held = found(seen=seen)
    assert isinstance(held, Hold)
    assert (held.reason, held.denies) == ("JoinRuleUnreadable", False)
    other = request(identity(rule="other"), user="system:joinrule:other")
    missing = found(csr=other, seen=seen)
    assert isinstance(missing, Hold)
    assert missing.reason == "JoinRuleDeleted"


def test_a_rule_that_cannot_be_read_may_have_let_in_another_key_with_a_token() -> None:
    seen = {**views(), "joinrules": FixedView([rule()], unreadable={("", "first"): "the key is missing"})}
    held = found(seen=seen)
    assert isinstance(held, Hold)
    assert (held.reason, held.message) == ("JoinRuleUnreadable", "the join rule first cannot be read")
    precondition = written(found(rule())).precondition
    assert precondition is not None
    assert not precondition(seen, NOW)
    by_person = written(found(seen=seen, person=True)).precondition
    assert by_person is not None
    assert by_person(seen, NOW)


@pytest.mark.parametrize(
    ("before", "changes", "entries"),
    [
        pytest.param(rule(), {}, [(A, MACHINE)], id="the first key of a token"),
        pytest.param(rule(allowedCIDRs=["10.0.0.0/8"], maxJoins=1), {}, [(A, MACHINE)], id="within the limits"),
        pytest.param(rule(expirationTimestamp="2020-01-01T00:00:00Z"), {}, [(A, MACHINE)], id="a rule that ended since"),
        pytest.param(rule(), {"now": LATE - timedelta(seconds=1)}, [(A, MACHINE)], id="a token that ended a moment ago"),
        pytest.param(rule(join("b", MACHINE), maxJoins=1), {}, [(B, MACHINE), (A, MACHINE)],
                     id="one key with a second token: the use is recorded and not counted twice"),
        pytest.param(rule(join("a", record(STRANGER)), maxJoins=2), {"person": True},
                     [(A, record(STRANGER)), (A, MACHINE)], id="a person lets in a second key, and both are counted"),
        pytest.param(rule(requireApproval=True), {"person": True, "now": LATE}, [(A, MACHINE)],
                     id="a person approves after the end of the token"),
        pytest.param(rule(audiences=["b"]), {"person": True}, [(A, MACHINE)], id="a person overlooks a change"),
        pytest.param(rule(nodeName=""), {"person": True}, [(A, MACHINE)], id="and another name"),
    ],
)  # fmt: skip
def test_a_join_is_counted_before_its_approval(
    before: Obj, changes: dict[str, Any], entries: list[tuple[str, str]]
) -> None:
    assert counted(found(before, **changes)) == entries


def test_a_rule_without_a_name_allows_every_one() -> None:
    free = rule(nodeName="")
    assert counted(found(free, csr=request(identity(free, node_name="")))) == [(A, MACHINE)]


def test_a_key_that_a_person_let_in_as_the_second_is_signed_as_recorded() -> None:
    both = rule(join("a", record(STRANGER)), join("a", MACHINE))
    assert found(both) is None


def test_of_two_reservations_of_one_view_one_is_written() -> None:
    """Both updates are for the same resourceVersion, and together they would let in two machines."""
    last = rule(join("b", "f" * 64), maxJoins=2)
    first = written(found(last))
    second = written(found(last, csr=request(identity(jti="c"), STRANGER)))
    assert first.obj["metadata"]["resourceVersion"] == second.obj["metadata"]["resourceVersion"]
    after = found(first.obj, csr=request(identity(jti="c"), STRANGER))
    assert isinstance(after, Hold)
    assert (after.reason, after.denies) == ("JoinRuleUsedUp", True)


def test_a_token_of_one_key_is_denied_to_the_next_after_its_entry_was_written() -> None:
    first = written(found(rule()))
    after = found(first.obj, csr=request(pem=STRANGER))
    assert isinstance(after, Hold)
    assert after.reason == "IdentityTokenUsed"


def test_no_join_is_counted_while_a_restored_store_may_have_forgotten_others() -> None:
    held = found(rule(), pending_tombstones=["node.n2"])
    assert isinstance(held, Hold)
    assert (held.reason, held.denies) == ("TombstonesUnsettled", False)
    assert found(rule(join("a", MACHINE)), pending_tombstones=["node.n2"]) is None, "it has joined before"
    precondition = written(found(rule())).precondition
    assert precondition is not None
    assert precondition(views(configmaps=[]), NOW)
    assert not precondition(views(configmaps=tombstone_list("node.n2")), NOW)


def test_a_join_is_counted_unless_another_rule_let_in_a_key_with_the_token_meanwhile() -> None:
    precondition = written(found(rule())).precondition
    assert precondition is not None
    for other, is_free in (
        (join("a", record(STRANGER)), False),
        (join("a", MACHINE), True),
        (join("b", "f" * 64), True),
    ):
        assert precondition(views(configmaps=[], joinrules=[rule(), named(rule(other), "first")]), NOW) is is_free


# -- one gate for the approver and the signer -----------------------------------------------------------------------------

CHECKS = (JoinRuleCheck(trusts_source_address=True),)


def stored(*conditions: Obj) -> Obj:
    csr = request()
    spec = {**csr["spec"], "signerName": KUBE_APISERVER_CLIENT_KUBELET, "usages": ["digital signature", "client auth"]}
    return {**csr, "spec": spec, "status": {"conditions": list(conditions)} if conditions else {}}


def approved(reason: str) -> Obj:
    return {"type": "Approved", "status": "True", "reason": reason}


def actions_of(controller: Controller, csr: Obj, *rules: Obj) -> list[Action]:
    """Return what a controller does where the requester has every right."""
    actions = plan(controller, ("", "join"), views(certificatesigningrequests=[csr], joinrules=rules))
    return list(actions[0].then(True)) if isinstance(actions[0], CheckAccess) else actions


def outcome(actions: list[Action]) -> tuple[str, str]:
    """Return type and reason of the condition that is written."""
    (update,) = (one for one in actions if isinstance(one, Update) and one.plural == "certificatesigningrequests")
    condition = update.obj["status"]["conditions"][-1]
    return condition["type"], condition["reason"]


JOINED = rule(join("a", MACHINE))


@pytest.mark.parametrize(
    ("rules", "condition"),
    [
        pytest.param([JOINED], ("Approved", "AutoApproved"), id="a key that is recorded"),
        pytest.param([rule(join("a", record(STRANGER)))], ("Denied", "IdentityTokenUsed"), id="a token of another key"),
        pytest.param(
            [rule(requireApproval=True)], ("NeedsApproval", "JoinRuleRequiresApproval"), id="a person is required"
        ),
        pytest.param([], ("NeedsApproval", "JoinRuleDeleted"), id="a rule that was deleted since"),
        pytest.param([rule(audiences=["b"])], ("NeedsApproval", "JoinRuleChanged"), id="a rule that was edited since"),
        pytest.param([rule(claims=[])], ("NeedsApproval", "JoinRuleUnreadable"), id="a rule with a mistake since"),
    ],
)
def test_what_the_approver_decides(rules: list[Obj], condition: tuple[str, str]) -> None:
    assert outcome(actions_of(CsrApprover(CHECKS), stored(), *rules)) == condition


def test_a_key_is_recorded_before_its_approval() -> None:
    """An action that fails, as by the resourceVersion of the rule, ends those behind it."""
    actions = actions_of(CsrApprover(CHECKS), stored(), rule())
    assert [one.plural for one in actions if isinstance(one, Update)] == ["joinrules", "certificatesigningrequests"]


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param([], id="deleted"),
        pytest.param([rule(join("a", MACHINE), audiences=["b"])], id="edited"),
        pytest.param([rule(join("a", MACHINE), requireApproval=True)], id="edited so that it requires a person"),
        pytest.param([rule(join("a", record(STRANGER)))], id="used by another key"),
    ],
)
def test_an_approval_is_judged_at_its_commit_by_the_rule_of_then(rules: list[Obj]) -> None:
    (update,) = actions_of(CsrApprover(CHECKS), stored(), JOINED)
    assert isinstance(update, Update)
    assert update.precondition is not None
    assert update.precondition(views(joinrules=[JOINED]), NOW)
    assert not update.precondition(views(joinrules=rules), NOW)


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        pytest.param(
            [rule(join("a", MACHINE), requireApproval=True)], "JoinRuleRequiresApproval", id="a person is required"
        ),
        pytest.param([], "JoinRuleDeleted", id="the rule is gone"),
        pytest.param([rule(join("a", MACHINE), audiences=["b"])], "JoinRuleChanged", id="the rule was edited"),
        pytest.param([rule(join("a", record(STRANGER)))], "IdentityTokenUsed", id="the token has let in another key"),
    ],
)
def test_the_signer_judges_again_what_no_person_approved(rules: list[Obj], reason: str) -> None:
    signer = CsrSigner(CA.cluster_ca.for_signer, checks=CHECKS, signing_duration=SIGNING_DURATION)
    assert outcome(actions_of(signer, stored(approved("AutoApproved")), *rules)) == ("Failed", reason)
    by_person = actions_of(signer, stored(approved("ApprovedByHand")), *rules)
    counts = any(isinstance(one, Update) and one.plural == "joinrules" for one in by_person)
    assert counts or any(isinstance(one, RecordIssuance) for one in by_person)


# -- records ------------------------------------------------------------------------------------------------------------


def signed(csr: Obj) -> Obj:
    """Return the entry of the issuance log for a request that a person approved."""
    approved = {"conditions": [{"type": "Approved", "status": "True", "reason": "ApprovedByHand"}]}
    spec = {**csr["spec"], "signerName": KUBE_APISERVER_CLIENT_KUBELET, "usages": ["digital signature", "client auth"]}
    controller = CsrSigner(CA.cluster_ca.for_signer, checks=(), signing_duration=SIGNING_DURATION)
    actions = plan(
        controller, ("", "join"), views(certificatesigningrequests=[{**csr, "spec": spec, "status": approved}])
    )
    (entry,) = (one.entry for one in actions if isinstance(one, RecordIssuance))
    return entry


FIELDS = ("joinRule", "identityIssuer", "identitySubject", "identityUse")


@pytest.mark.parametrize(
    ("csr", "fields"),
    [
        pytest.param(request(), ["ci", ISSUER, "s", A], id="an identity token"),
        pytest.param(
            request(identity(subject="a\nb\0")),
            ["ci", ISSUER, "a\ufffdb\ufffd", A],
            id="control characters in a subject",
        ),
        pytest.param(request(identity(subject="")), ["ci", ISSUER, None, A], id="a token without a subject"),
        pytest.param(request(user="jane"), [None] * 4, id="another user with such attributes"),
        pytest.param(request(identity(digest="")), [None] * 4, id="another server states a part"),
    ],
)
def test_the_issuance_log_says_which_token_asked(csr: Obj, fields: list[str | None]) -> None:
    entry = signed(csr)
    assert [entry.get(name) for name in FIELDS] == fields
    assert entry["requester"] == csr["spec"]["username"]


@pytest.mark.parametrize(
    ("seen", "spec"),
    [
        pytest.param(views(joinrules=[rule()]), {"joinRule": "ci"}, id="a rule"),
        pytest.param(views(joinrules=[rule(ephemeral="30m")]), {"joinRule": "ci", "silenceSeconds": 1800},
                     id="a rule with a silence"),
        pytest.param(views(), {"joinRule": "ci"}, id="a rule that is gone"),
    ],
)  # fmt: skip
def test_the_record_of_a_name_says_by_which_rule_it_was_obtained(seen: Views, spec: Obj) -> None:
    csr = request()
    csr["spec"] |= {"signerName": KUBE_APISERVER_CLIENT_KUBELET, "usages": ["digital signature", "client auth"]}
    pending = PendingIssue(csr=csr, request=parse_request(PEM), now=NOW, automatic=True)
    finding = NameOwnership(CA.cluster_ca.for_signer, SIGNING_DURATION).check(pending, seen)
    assert isinstance(finding, Reservation)
    (action,) = finding.actions
    assert isinstance(action, Create)
    written = action.obj["spec"]
    assert {name: written[name] for name in ("joinRule", "silenceSeconds", "token") if name in written} == spec


def test_a_rule_gives_no_machine_the_name_of_another() -> None:
    csr = request()
    csr["spec"] |= {"signerName": KUBE_APISERVER_CLIENT_KUBELET, "usages": ["digital signature", "client auth"]}
    owner = {"keys": [{"publicKey": "sha256:" + "0" * 64, "notAfter": rfc3339(NOW + HOUR)}]}
    seen = views(
        joinrules=[rule()], nodes=[thing("ci-1")], nodeidentities=[thing("ci-1", spec=owner)],
    )  # fmt: skip
    pending = PendingIssue(csr=csr, request=parse_request(PEM), now=NOW, automatic=True)
    finding = NameOwnership(CA.cluster_ca.for_signer, SIGNING_DURATION).check(pending, seen)
    assert isinstance(finding, Hold)
    assert finding.reason == "NodeNameTaken"


# -- what else depends on the rule -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "stated", "name"),
    [
        pytest.param("jane", identity(), None, id="another user"),
        pytest.param("system:bootstrap:abcdef", identity(), "", id="a token"),
        pytest.param("system:bootstrap:ghijkl", identity(), None, id="a token that is gone"),
        pytest.param(USER, identity(), "ci-1", id="an identity token"),
        pytest.param(USER, identity(node_name=""), "", id="one of a rule without names"),
    ],
)
def test_names_that_a_requester_may_have(user: str, stated: JoinIdentity, name: str | None) -> None:
    allowed = name_allowance(UserInfo(user, extra=stated.extra()), views(secrets=[token_secret()]))
    assert (allowed.restrictions.node_name if allowed is not None else None) == name


def test_an_allowance_that_cannot_be_read_is_an_error() -> None:
    secret = token_secret()
    secret["metadata"]["annotations"] = {"mooring.dev/max-joins": "x"}
    with pytest.raises(TokenError, match="the bootstrap token abcdef"):
        name_allowance(UserInfo("system:bootstrap:abcdef"), views(secrets=[secret]))
    with pytest.raises(JoinRuleError):
        name_allowance(UserInfo(USER), views())


@pytest.mark.parametrize(
    ("user", "seen", "silence"),
    [
        pytest.param("jane", views(), None, id="another user"),
        pytest.param(USER, views(), None, id="a rule that is gone"),
        pytest.param(USER, views(joinrules=[rule()]), 0, id="a rule without a silence"),
        pytest.param(USER, views(joinrules=[rule(ephemeral="30m")]), 1800, id="a rule with one"),
        pytest.param(USER, views(joinrules=[rule(claims=[], ephemeral="30m")]), 0, id="a rule that cannot be read"),
        pytest.param("system:bootstrap:abcdef", views(secrets=[token_secret()]), 0, id="a token without a silence"),
        pytest.param("system:bootstrap:abcdef", views(), None, id="a token that is gone"),
    ],
)
def test_the_silence_after_which_a_machine_is_removed(user: str, seen: Views, silence: int | None) -> None:
    assert joining_silence(user, seen) == silence


@pytest.mark.parametrize(
    ("username", "name"),
    [("system:joinrule:ci", "ci"), ("system:joinrule:", ""), ("system:bootstrap:ci", ""), ("system:joinruleci", "")],
)
def test_the_rule_of_a_user(username: str, name: str) -> None:
    assert join_rule_name(username) == name
