"""Events about identities: which step makes one, about what, and how many."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import pytest

from mooring.api.certificates.requestrecords import APPROVED, DENIED, FAILED, SOURCE_ADDRESS
from mooring.api.core.event import MAX_MESSAGE
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.schema import Obj
from mooring.controllers import identityevents
from mooring.controllers.actions import Create, Requeue
from mooring.controllers.certificates.issuance import NEEDS_APPROVAL, WOULD_FAIL
from mooring.controllers.identityevents import (
    MAX_OF_REQUESTER,
    MAX_OPEN,
    MAX_PER_MINUTE,
    MINUTE,
    MOMENT,
    RECENT,
    UNDECIDED,
    IdentityEvents,
)
from mooring.pki.keys import generate_key
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT, KUBE_APISERVER_CLIENT_KUBELET
from mooring.trust.bootstraptoken.restrictions import JOINED_KEYS, MAX_JOINS
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE
from tests.support.plans import HOUR, NOW, enqueued, moment, plan, thing, token_secret, views, with_metadata
from tests.support.testca import ThrowawayCA

REQUESTS = "certificatesigningrequests"
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)
JOINER = "system:bootstrap:abcdef"
CERTIFICATE = base64.b64encode(ThrowawayCA(now=NOW).node("n1").certificate_pem).decode()
PEM = {name: build_request(generate_key(), name) for name in ("system:node:n1", "system:node:No!", "jane")}


def condition(kind: str, ago: timedelta = SECOND, reason: str = "Why", message: str = "because") -> Obj:
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": moment(-ago)}


def request(
    *conditions: Obj, ago: timedelta = SECOND, certificate: str = "", name: str = "r", user: str = JOINER, **more: Any
) -> Obj:
    subject, signer = more.pop("subject", "system:node:n1"), more.pop("signer", KUBE_APISERVER_CLIENT_KUBELET)
    spec = {"request": base64.b64encode(PEM[subject]).decode(), "signerName": signer, "username": user}
    status = {"conditions": list(conditions)} | ({"certificate": certificate} if certificate else {})
    annotations = {SOURCE_ADDRESS: "192.0.2.1"}
    created = {} if ago < timedelta(0) else {"creationTimestamp": moment(-ago)}
    return thing(name, spec=spec, status=status, metadata={"annotations": annotations, **created})


def events(controller: IdentityEvents, after: timedelta = timedelta(0), **objects: list[Obj]) -> list[Obj]:
    """Return the Events that a start with these objects makes."""
    seen = views(**objects)
    made = [action for key in enqueued(controller, seen) for action in plan(controller, key, seen, NOW + after)]
    return [action.obj for action in made if isinstance(action, Create)]


def reasons(controller: IdentityEvents, after: timedelta = timedelta(0), **objects: list[Obj]) -> list[str]:
    return [f"{one['type']} {one['reason']}" for one in events(controller, after, **objects)]


ISSUED, APPROVAL, HELD = (
    "Normal CertificateIssued",
    "Normal CertificateRequestApproved",
    "Normal CertificateRequestHeld",
)
REFUSED, UNSIGNED = "Warning CertificateRequestDenied", "Warning CertificateRequestFailed"


@pytest.mark.parametrize(
    ("csr", "made"),
    [
        pytest.param(request(), [], id="one that was made a moment ago"),
        pytest.param(request(ago=UNDECIDED), [HELD], id="one that no controller decides"),
        pytest.param(request(ago=HOUR), [], id="one that waited before the start"),
        pytest.param(request(ago=-SECOND), [], id="one without a time"),
        pytest.param(request(condition(NEEDS_APPROVAL)), [], id="one that is held since a moment"),
        pytest.param(request(condition(NEEDS_APPROVAL, MOMENT)), [HELD], id="one that is held"),
        pytest.param(request(condition(WOULD_FAIL, MOMENT), ago=MOMENT), [HELD], id="one that would fail"),
        pytest.param(request(condition(NEEDS_APPROVAL, HOUR)), [], id="one that was held before the start"),
        pytest.param(request(condition(APPROVED)), [], id="one that is approved at once"),
        pytest.param(
            request(condition(APPROVED), condition(NEEDS_APPROVAL, HOUR)), [APPROVAL], id="one that a person approves"
        ),
        pytest.param(request(condition(APPROVED), ago=HOUR), [APPROVAL], id="one that is approved late"),
        pytest.param(request(condition(APPROVED), ago=-SECOND), [], id="an approval of one without a time"),
        pytest.param(request(condition(APPROVED, HOUR), ago=DAY), [], id="one that was approved before the start"),
        pytest.param(request(condition(DENIED)), [REFUSED], id="one that is denied"),
        pytest.param(request(condition(DENIED, HOUR)), [], id="one that was denied before the start"),
        pytest.param(request(condition(APPROVED), condition(FAILED)), [UNSIGNED], id="one that fails"),
        pytest.param(request(condition(APPROVED), certificate=CERTIFICATE), [ISSUED], id="one that is issued at once"),
        pytest.param(
            request(condition(APPROVED), condition(NEEDS_APPROVAL, HOUR), certificate=CERTIFICATE),
            [APPROVAL, ISSUED],
            id="one that was held, and is issued",
        ),
        pytest.param(
            request(condition(APPROVED, 2 * RECENT), certificate=CERTIFICATE), [], id="one that was issued before"
        ),
        pytest.param(request(certificate=CERTIFICATE), [], id="a certificate without an approval"),
    ],
)
def test_a_request(csr: Obj, made: list[str]) -> None:
    assert reasons(IdentityEvents(), certificatesigningrequests=[csr]) == made


def test_an_event_about_a_certificate_says_who_got_it_from_where_by_whom_and_until_when() -> None:
    csr = request(condition(APPROVED, reason="AutoApproved", message="by RBAC"), certificate=CERTIFICATE)
    (event,) = events(IdentityEvents(), certificatesigningrequests=[csr])
    assert event["message"] == (
        "the certificate of the request r of node n1 (system:bootstrap:abcdef) from 192.0.2.1 was issued by "
        "kubernetes.io/kube-apiserver-client-kubelet, valid until 2027-01-02T03:04:05Z; approved: AutoApproved: by RBAC"
    )
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1"}
    assert event["metadata"] == {"name": "r.uid-of-r.issued", "namespace": "default"}
    assert event["source"] == {"component": "mooring"}
    assert BY_PLURAL["events"].validate(event) == []


def test_an_address_that_the_requester_writes_is_left_out() -> None:
    (event,) = events(
        IdentityEvents(trusts_source_address=False), certificatesigningrequests=[request(condition(DENIED))]
    )
    assert event["message"] == "the certificate request r of node n1 (system:bootstrap:abcdef) was denied: Why: because"


@pytest.mark.parametrize("subject", ["jane", "system:node:No!"])
def test_a_request_that_is_for_no_node_is_what_its_event_is_about(subject: str) -> None:
    csr = request(condition(DENIED), subject=subject, signer=KUBE_APISERVER_CLIENT)
    (event,) = events(IdentityEvents(), certificatesigningrequests=[csr])
    assert event["involvedObject"] == {
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "name": "r", "uid": "uid-of-r",
    }  # fmt: skip


def test_a_message_is_one_bounded_line_whatever_it_quotes() -> None:
    denied = condition(DENIED, reason="a\nb", message="\x1b[2J" + "x" * 5000)
    (event,) = events(
        IdentityEvents(), certificatesigningrequests=[request(denied, user="u\u202e" * 500, name="n" * 253)]
    )
    assert event["message"].isprintable()
    assert len(event["message"]) <= MAX_MESSAGE
    assert len(event["metadata"]["name"]) <= 253


def test_a_condition_without_a_reason_and_a_certificate_that_cannot_be_read() -> None:
    csr = request(condition(APPROVED, reason="", message=""), certificate="bm9uZQ==")
    (event,) = events(IdentityEvents(), certificatesigningrequests=[csr])
    assert event["message"].endswith("valid until a time that cannot be read; approved: no reason was given")


def test_a_request_that_a_signer_answers_late_was_seen_before() -> None:
    controller = IdentityEvents()
    assert events(controller, certificatesigningrequests=[request(condition(APPROVED, HOUR), ago=HOUR)]) == []
    signed = request(condition(APPROVED, HOUR), ago=HOUR, certificate=CERTIFICATE)
    assert reasons(controller, certificatesigningrequests=[signed]) == [ISSUED]
    assert reasons(controller, certificatesigningrequests=[signed]) == []


def test_requests_that_are_remembered_are_bounded_and_forgotten_with_the_request() -> None:
    controller = IdentityEvents()
    csr = request(condition(APPROVED, HOUR), ago=HOUR)
    controller._open |= {str(number) for number in range(MAX_OPEN)}
    assert events(controller, certificatesigningrequests=[csr]) == []
    assert len(controller._open) == MAX_OPEN
    controller._open = {"uid-of-r"}
    assert controller.keys(REQUESTS, csr, True, views()) == ()
    assert controller._open == set()


@pytest.mark.parametrize(
    ("csr", "again"),
    [
        (request(), UNDECIDED - SECOND),
        (request(condition(NEEDS_APPROVAL)), MOMENT - SECOND),
        (request(condition(APPROVED)), None),
    ],
)
def test_a_request_is_judged_again_after_a_moment(csr: Obj, again: timedelta | None) -> None:
    actions = plan(IdentityEvents(), (REQUESTS, "r"), views(certificatesigningrequests=[csr]))
    assert actions == ([Requeue(NOW + again)] if again is not None else [])


def test_an_object_that_is_gone_is_nothing() -> None:
    for plural in IdentityEvents().watches:
        assert plan(IdentityEvents(), (plural, "x"), views()) == []


def revocation(ago: timedelta = SECOND, **spec: str) -> Obj:
    return thing("e", spec={"reason": "keyCompromise", **spec}, metadata={"creationTimestamp": moment(-ago)})


@pytest.mark.parametrize(
    ("entry", "text", "about"),
    [
        (
            revocation(serialNumber="1f"),
            "revoked (keyCompromise): the certificate with serial number 1f",
            "CertificateRevocation",
        ),
        (
            revocation(publicKey="sha256:aa", message="lost laptop"),
            "revoked (keyCompromise): certificates of the key sha256:aa; lost laptop",
            "CertificateRevocation",
        ),
        (
            revocation(nodeName="n1", issuedBefore=moment(SECOND)),
            "revoked (keyCompromise): certificates of the node n1 that were issued before 2026-01-02T03:04:06Z",
            "Node",
        ),
        (
            revocation(DAY, nodeName="n1", issuedBefore=moment(SECOND)),
            "revoked (keyCompromise): certificates of the node n1 that were issued before 2026-01-02T03:04:06Z",
            "Node",
        ),
    ],
)
def test_a_revocation(entry: Obj, text: str, about: str) -> None:
    (event,) = events(IdentityEvents(), certificaterevocations=[entry])
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "CertificateRevoked", text)
    assert event["involvedObject"]["kind"] == about
    assert BY_PLURAL["events"].validate(event) == []


@pytest.mark.parametrize("entry", [revocation(HOUR, serialNumber="1f"), thing("e", spec={"serialNumber": "1"})])
def test_an_old_revocation_is_nothing(entry: Obj) -> None:
    assert events(IdentityEvents(), certificaterevocations=[entry]) == []


def test_a_node_that_is_revoked_again_has_another_event() -> None:
    first, second = (
        events(
            IdentityEvents(), certificaterevocations=[revocation(HOUR, nodeName="n1", issuedBefore=moment(SECOND * at))]
        )
        for at in (1, 3)
    )
    assert first[0]["metadata"]["name"] != second[0]["metadata"]["name"]


def identity(**spec: Any) -> Obj:
    return thing("n1", spec={"nodeUID": "gone", "changedAt": moment(-SECOND), **spec})


@pytest.mark.parametrize(
    ("obj", "nodes", "after", "texts"),
    [
        pytest.param(identity(), [], SECOND, ["its Node was deleted"], id="a Node that was deleted"),
        pytest.param(identity(), [thing("n1")], SECOND, ["its Node was deleted"], id="a Node that was made again"),
        pytest.param(identity(reregisters=True), [], SECOND, [], id="a machine that may come back"),
        pytest.param(identity(changedAt=moment(-HOUR)), [], SECOND, [], id="one that ended before the start"),
        pytest.param(identity(changedAt=""), [], SECOND, [], id="one that does not say when"),
        pytest.param(identity(endReason="Silent"), [], timedelta(0), [], id="a silent one at once"),
        pytest.param(identity(endReason="Silent"), [], SECOND, ["its machine was silent"], id="a silent one"),
        pytest.param(identity(nodeUID=""), [], SECOND, [], id="a name without a machine"),
        pytest.param(
            identity(nodeUID=""),
            [with_metadata(thing("n1"), deletionTimestamp=moment(SECOND))],
            SECOND,
            [],
            id="a Node whose deletion is not recorded yet",
        ),
    ],
)
def test_the_end_of_a_membership(obj: Obj, nodes: list[Obj], after: timedelta, texts: list[str]) -> None:
    made = events(IdentityEvents(), after, nodeidentities=[obj], nodes=nodes)
    kept = [one for one in made if one["reason"] == "MembershipEnded"]
    assert {one["message"] for one in kept} == {
        f"the membership of n1 has ended, because {text}; its certificates are accepted no more" for text in texts
    }
    assert {one["metadata"]["name"] for one in kept} == {"n1.gone" for _ in texts}


def test_the_deletion_of_a_node_plans_its_identity_and_a_heartbeat_nothing() -> None:
    controller, key = IdentityEvents(), ("nodeidentities", "n1")
    assert controller.keys("nodes", thing("n1"), False, views()) == ()
    assert controller.keys("nodes", thing("n1"), True, views()) == (key,)
    terminating = with_metadata(thing("n1"), deletionTimestamp=moment(HOUR))
    assert controller.keys("nodes", terminating, False, views()) == (key,)


def member(begin: str, end: str, **more: Any) -> Obj:
    uses = [{"publicKey": "k", "certificate": "c", "firstUsed": begin}]
    return thing("n1", spec={"keys": [{"publicKey": "k", "notAfter": end}]}, status={"certificates": uses}, **more)


@pytest.mark.parametrize(
    ("obj", "made", "again"),
    [
        pytest.param(member(moment(-9 * HOUR), moment(HOUR)), 1, None, id="past nine tenths"),
        pytest.param(member(moment(-8 * HOUR), moment(2 * HOUR)), 0, HOUR, id="before"),
        pytest.param(member(moment(-9 * HOUR), moment(-HOUR)), 0, None, id="ended"),
        pytest.param(member("", moment(HOUR)), 0, None, id="a first use that cannot be read"),
        pytest.param(member(moment(-9 * HOUR), "never"), 0, None, id="an end that cannot be read"),
        pytest.param({**member("", moment(HOUR)), "status": {}}, 0, None, id="never used"),
        pytest.param(thing("n1", spec={}), 0, None, id="without a key"),
    ],
)
def test_a_certificate_that_is_not_renewed(obj: Obj, made: int, again: timedelta | None) -> None:
    seen = views(nodeidentities=[obj], nodes=[thing("n1")])
    actions = plan(IdentityEvents(), ("nodeidentities", "n1"), seen)
    assert [one.obj["reason"] for one in actions if isinstance(one, Create)] == ["CertificateEndsSoon"] * made
    assert [one for one in actions if isinstance(one, Requeue)] == ([Requeue(NOW + again)] if again else [])
    assert events(IdentityEvents(), nodeidentities=[obj]) == []  # without a Node nobody renews


def limited(joined: int, most: str = "2") -> Obj:
    keys = ",".join(f"{number:064x}" for number in range(joined))
    annotations = ({MAX_JOINS: most} if most else {}) | ({JOINED_KEYS: keys} if keys else {})
    return with_metadata(token_secret(), annotations=annotations)


@pytest.mark.parametrize(
    ("states", "made"),
    [
        pytest.param([limited(1), limited(2), limited(2)], 1, id="used up"),
        pytest.param([limited(2), limited(2)], 0, id="used up before the start"),
        pytest.param([limited(0), limited(1)], 0, id="not used up"),
        pytest.param([limited(0, ""), limited(2, "")], 0, id="without a limit"),
        pytest.param([limited(1), limited(2, "many")], 0, id="a limit that cannot be read"),
        pytest.param([limited(1), {**limited(2), "type": "Opaque"}], 0, id="another Secret"),
    ],
)
def test_a_token(states: list[Obj], made: int) -> None:
    controller = IdentityEvents()
    found = [one for state in states for one in events(controller, secrets=[state])]
    assert len(found) == made
    for event in found:
        assert event["message"] == (
            "the bootstrap token abcdef lets no more machines join: 2 of 2 have joined (mooring.dev/max-joins)"
        )
        assert event["metadata"]["namespace"] == event["involvedObject"]["namespace"] == NAMESPACE
        assert BY_PLURAL["events"].validate(event) == []
        assert "0123456789abcdef" not in str(event)


def test_a_secret_that_became_another_one_is_nothing() -> None:
    seen = views(secrets=[{**limited(2), "type": "Opaque"}])
    assert plan(IdentityEvents(), ("secrets", "bootstrap-token-abcdef"), seen) == []


def test_each_phase_of_a_rollover_is_announced_once() -> None:
    transitions = [
        {"phase": "TrustBoth", "time": moment(-HOUR)},
        {"phase": "IssueNew", "time": moment(-SECOND)},
        {"phase": "Drain"},
    ]
    rollover = thing("cluster-ca", status={"phase": "Drain", "transitions": transitions})
    (event,) = events(IdentityEvents(), certificateauthorityrollovers=[rollover])
    assert (event["reason"], event["message"]) == (
        "CARolloverPhase",
        "the rollover of the CA of the cluster has reached IssueNew",
    )
    assert event["involvedObject"]["kind"] == "CertificateAuthorityRollover"
    assert events(IdentityEvents(), certificateauthorityrollovers=[thing("cluster-ca")]) == []


def test_another_api_server_has_no_rollover() -> None:
    assert "certificateauthorityrollovers" not in IdentityEvents(follows_rollover=False).watches


def many(count: int, user: str = JOINER) -> list[Obj]:
    return [request(condition(DENIED), name=f"{user[-6:]}-{number:03}", user=user) for number in range(count)]


def test_the_requests_of_one_user_leave_room_for_those_of_others() -> None:
    controller = IdentityEvents()
    assert len(events(controller, certificatesigningrequests=many(100))) == MAX_OF_REQUESTER
    assert len(events(controller, certificatesigningrequests=many(1, "system:bootstrap:ghijkl"))) == 1


def test_all_requests_leave_room_for_what_no_requester_causes() -> None:
    controller = IdentityEvents()
    for user in ("system:bootstrap:ghijkl", "system:bootstrap:mnopqr", JOINER):
        events(controller, certificatesigningrequests=many(MAX_OF_REQUESTER, user))
    assert events(controller, certificatesigningrequests=many(1, "system:node:n1")) == []
    entries = [replace_name(revocation(serialNumber="1"), f"serial-{number:x}") for number in range(100)]
    assert len(events(controller, certificaterevocations=entries)) == MAX_PER_MINUTE


def replace_name(obj: Obj, name: str) -> Obj:
    return with_metadata(obj, name=name, uid=name)


def test_what_was_left_out_is_counted_in_the_next_minute() -> None:
    controller = IdentityEvents()
    seen = views(certificatesigningrequests=many(MAX_OF_REQUESTER + 5))
    made = [(key, action) for key in enqueued(controller, seen) for action in plan(controller, key, seen)]
    ((deferred, again),) = [(key, action) for key, action in made if isinstance(action, Requeue)]
    assert again == Requeue(NOW + MINUTE)
    told, late = plan(controller, deferred, seen, NOW + MINUTE)
    assert isinstance(told, Create)
    assert isinstance(late, Create)
    assert (told.obj["type"], told.obj["reason"]) == ("Warning", "EventsLeftOut")
    assert told.obj["message"].startswith(
        "Events about identities that were left out in the minute from 2026-01-02T03:04:05Z: 4. "
    )
    assert late.obj["reason"] == "CertificateRequestDenied"


def test_an_event_that_is_left_out_counts_once_however_often_its_object_changes() -> None:
    controller = IdentityEvents()
    seen = views(certificatesigningrequests=many(MAX_OF_REQUESTER + 5))
    keys = enqueued(controller, seen)
    rounds = [[action for key in keys for action in plan(controller, key, seen)] for _ in range(3)]
    assert rounds[1] == rounds[2] == rounds[0], "the same Events, and the same key waits"
    left_out, _ = plan(controller, keys[MAX_OF_REQUESTER], seen, NOW + MINUTE)
    assert isinstance(left_out, Create)
    assert "2026-01-02T03:04:05Z: 4. " in left_out.obj["message"]


def test_two_events_of_a_request_are_left_out_as_two() -> None:
    controller = IdentityEvents()
    denied = views(certificatesigningrequests=many(MAX_OF_REQUESTER + 5))
    waits = [request(condition("NeedsApproval", MINUTE), name=f"abcdef-{n:03}") for n in range(MAX_OF_REQUESTER + 5)]
    events(controller, certificatesigningrequests=waits)
    for key in enqueued(controller, denied):
        plan(controller, key, denied)
    left_out, *_ = plan(controller, ("certificatesigningrequests", "abcdef-000"), denied, NOW + MINUTE)
    assert isinstance(left_out, Create)
    assert f": {5 - 1 + MAX_OF_REQUESTER + 5}. " in left_out.obj["message"]


def test_the_names_of_events_that_are_left_out_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identityevents, "MAX_OPEN", 3)
    controller = IdentityEvents()
    seen = views(certificatesigningrequests=many(MAX_OF_REQUESTER + 9))
    for key in enqueued(controller, seen):
        plan(controller, key, seen)
    told, *_ = plan(controller, ("certificatesigningrequests", "abcdef-000"), seen, NOW + MINUTE)
    assert isinstance(told, Create)
    assert "2026-01-02T03:04:05Z: 3. " in told.obj["message"]


def test_a_clock_that_is_set_back_begins_another_minute() -> None:
    controller = IdentityEvents()
    assert len(events(controller, certificatesigningrequests=many(100))) == MAX_OF_REQUESTER
    earlier = timedelta(minutes=-2)
    assert len(events(controller, earlier, certificatesigningrequests=many(1))) == 2


def test_ten_thousand_old_requests_make_no_event_at_the_start() -> None:
    old = request(condition(APPROVED, HOUR), certificate=CERTIFICATE, ago=HOUR)
    requests = [replace_name(old, f"r{number}") for number in range(10_000)]
    assert events(IdentityEvents(), certificatesigningrequests=requests) == []
