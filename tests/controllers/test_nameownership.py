"""Issuance check of names: who gets the name of a node, what is recorded, and which requests are held or denied."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from mooring.api.certificates.requestrecords import REQUESTER_CERTIFICATE
from mooring.api.mooring.nodeidentity import KIND, MAX_KEYS
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Create, Update
from mooring.controllers.certificates.issuance import CheckResult, Hold, PendingIssue, Reservation
from mooring.controllers.certificates.sanpolicy.ownership import NameOwnership
from mooring.pki.keys import generate_key, public_key_fingerprint
from mooring.pki.x509.authority import request_serial_number
from mooring.pki.x509.requests import build_request, parse_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT_KUBELET, KUBELET_SERVING
from mooring.settings.signing import SIGNING_DURATION
from tests.support.plans import HOUR, NOW, moment, thing, token_secret, views
from tests.support.testca import ThrowawayCA

CA = ThrowawayCA(now=NOW)
CHECK = NameOwnership(CA.cluster_ca.for_signer, signing_duration=SIGNING_DURATION)
KEY = generate_key()
YEAR = timedelta(days=365)
TOKEN, NODE, RECOVERING = "system:bootstrap:abcdef", "system:node:n1", "system:recovering-node:n1"
CERTIFICATE = "sha256:" + "c" * 64
PRESENTED = {"authentication.kubernetes.io/credential-id": ["JTI=1", "X509SHA256=" + "c" * 64]}


def pending(
    username: str = TOKEN,
    *,
    common_name: str = "system:node:n1",
    automatic: bool = True,
    signer: str = KUBE_APISERVER_CLIENT_KUBELET,
    usage: str = "client auth",
    now: datetime = NOW,
    source: str = "192.0.2.9",
    status: Obj | None = None,
    **spec: Any,
) -> PendingIssue:
    pem = build_request(KEY, common_name, ("system:nodes",))
    spec |= {"signerName": signer, "username": username, "usages": ["digital signature", usage]}
    metadata = {"annotations": {"mooring.dev/source-address": source}, "creationTimestamp": moment(timedelta(0))}
    csr = thing("join", spec=spec, metadata=metadata, status=status or {})
    return PendingIssue(csr=csr, request=parse_request(pem), now=now, automatic=automatic)


ENTRY = {
    "publicKey": f"sha256:{public_key_fingerprint(KEY)}",
    "serialNumber": f"{request_serial_number('uid-of-join'):x}",
    "issuer": f"sha256:{public_key_fingerprint(CA.certificate.public_key())}",  # type: ignore[arg-type]  # an ECDSA key
    "notAfter": moment(YEAR),
}
CHILD = {**ENTRY, "parent": CERTIFICATE}
"""Entry of a certificate that was requested with another one."""
OLD = {"publicKey": "sha256:" + "0" * 64, "notAfter": moment(HOUR)}
PROVEN = {"recovery.mooring.dev/public-key": [OLD["publicKey"]]}
NODES = [thing("n1", metadata={"uid": "u1"})]
HELD_NODES = [
    thing("n1", metadata={"uid": "u1", "deletionTimestamp": moment(-HOUR), "finalizers": ["example.com/hold"]})
]


def seen(spec: Obj | None = None, *, node: bool = False, held: bool = False, token: str | None = None) -> Views:
    secret = token_secret()
    if token is not None:
        secret["metadata"]["annotations"] = {"mooring.dev/node-name": token}
    return views(
        nodeidentities=[thing("n1", spec=spec)] if spec is not None else [],
        nodes=(HELD_NODES if held else NODES) if node else [],
        secrets=[secret],
    )


def seen_by_ephemeral(spec: Obj | None = None, *, text: str = "30m", node: bool = False) -> Views:
    """Return what a request sees whose token says that its machines are removed after `text` of silence."""
    found = seen(spec, node=node, token="n1")
    annotations = found["secrets"].get("bootstrap-token-abcdef", "kube-system")["metadata"]["annotations"]  # type: ignore[index]  # it is there
    annotations["mooring.dev/ephemeral"] = text
    return found


def written(finding: CheckResult | None) -> tuple[type, Obj]:
    """Return the kind of the only action, and the spec that it writes."""
    assert isinstance(finding, Reservation)
    (action,) = finding.actions
    assert isinstance(action, Create | Update)
    assert action.plural == "nodeidentities"
    assert action.obj["metadata"]["name"] == "n1"
    assert KIND.validate(action.obj) == []
    return type(action), without_times(action.obj["spec"])


def without_times(spec: Obj) -> Obj:
    """Return a spec without the times at which it was written."""
    kept = {field: value for field, value in spec.items() if field != "changedAt"}
    for field in kept.keys() & {"keys", "companions"}:
        kept[field] = [{name: value for name, value in key.items() if name != "recordedAt"} for key in kept[field]]
    return kept


FIRST = {"keys": [ENTRY], "token": "abcdef", "sourceAddress": "192.0.2.9"}
BY_A_PERSON = {"keys": [ENTRY], "sourceAddress": "192.0.2.9"}


@pytest.mark.parametrize(
    ("found", "asked", "action", "spec"),
    [
        pytest.param(seen(), pending(), Create, FIRST, id="the first machine gets a free name"),
        pytest.param(seen({}), pending(), Update, FIRST, id="a name whose owner was removed is free"),
        pytest.param(
            seen(), pending(NODE, extra=PRESENTED), Create,
            {"keys": [CHILD], "sourceAddress": "192.0.2.9", "formerCertificate": CERTIFICATE},
            id="a node from before its identity keeps the certificate that it has",
        ),
        pytest.param(
            seen({"keys": [OLD]}), pending(NODE, extra=PRESENTED), Update,
            {"keys": [OLD, CHILD], "sourceAddress": "192.0.2.9"}, id="a certificate of this record is no former one",
        ),
        pytest.param(
            seen({"keys": [OLD], "formerCertificate": CERTIFICATE}), pending(NODE, extra=PRESENTED), Update,
            {"keys": [OLD, CHILD], "sourceAddress": "192.0.2.9", "formerCertificate": CERTIFICATE},
            id="and keeps it until it renews with a recorded one",
        ),
        pytest.param(
            seen({"keys": [OLD], "token": "fedcba", "formerCertificate": CERTIFICATE}), pending(NODE), Update,
            {"keys": [OLD, ENTRY], "token": "fedcba", "sourceAddress": "192.0.2.9"}, id="a renewal adds a key",
        ),
        pytest.param(
            seen({"keys": [OLD]}), pending(NODE, now=NOW + 2 * HOUR, source="unknown"), Update,
            {"keys": [{**ENTRY, "notAfter": moment(YEAR + 2 * HOUR)}]}, id="and drops those that expired",
        ),
        pytest.param(
            seen({"keys": [OLD] * MAX_KEYS}), pending(NODE), Update,
            {"keys": [*[OLD] * (MAX_KEYS - 1), ENTRY], "sourceAddress": "192.0.2.9"}, id="and the oldest of many",
        ),
        pytest.param(
            seen({"keys": [{**ENTRY, "serialNumber": "1"}]}),
            pending(),
            Update,
            {"keys": [{**ENTRY, "serialNumber": "1"}, ENTRY], "sourceAddress": "192.0.2.9"},
            id="a token repeats the request of the same key",
        ),
        pytest.param(
            seen({"keys": [OLD]}), pending(RECOVERING), Update,
            {"keys": [OLD, ENTRY], "sourceAddress": "192.0.2.9"}, id="a machine on its way back adds a key",
        ),
        pytest.param(
            seen({"keys": [{**OLD, "publicKey": f"sha256:{'9' * 64}"}, OLD]}),
            pending(RECOVERING, now=NOW + 2 * HOUR, extra=PROVEN), Update,
            {"keys": [OLD, {**ENTRY, "notAfter": moment(YEAR + 2 * HOUR)}], "sourceAddress": "192.0.2.9"},
            id="and keeps the expired key that it proved, alone",
        ),
        pytest.param(
            seen({"keys": [OLD], "nodeUID": "u0", "formerCertificate": CERTIFICATE}), pending(), Update, FIRST,
            id="a deleted Node frees its name",
        ),
        pytest.param(
            seen({"keys": [ENTRY], "nodeUID": "u0"}), pending(), Update, FIRST, id="for the same key, too",
        ),
        pytest.param(
            seen({"keys": [OLD]}, node=True, token="n1"), pending(), Update, FIRST, id="a token for this name replaces",
        ),
        pytest.param(seen(node=True, token="n1"), pending(), Create, FIRST, id="also where no key is recorded"),
        pytest.param(
            seen({"keys": [OLD]}, node=True), pending("jane", automatic=False), Update, BY_A_PERSON,
            id="an approval of a person replaces",
        ),
        pytest.param(
            seen({"keys": [OLD], "nodeUID": "u0"}), pending(NODE, automatic=False), Update, BY_A_PERSON,
            id="and lets a machine back whose Node was deleted",
        ),
        pytest.param(
            seen(), pending(expirationSeconds=3600), Create,
            {**FIRST, "keys": [{**ENTRY, "notAfter": moment(timedelta(minutes=65))}]}, id="a short certificate, and five minutes",
        ),
    ],
)  # fmt: skip
def test_what_is_recorded(found: Views, asked: PendingIssue, action: type, spec: Obj) -> None:
    assert written(CHECK.check(asked, found)) == (action, spec)


@pytest.mark.parametrize(
    ("found", "asked", "silence"),
    [
        pytest.param(seen_by_ephemeral(), pending(), 1800, id="the first machine by the token"),
        pytest.param(seen_by_ephemeral(text="7d"), pending(), 7 * 86400, id="days"),
        pytest.param(
            seen_by_ephemeral({"keys": [OLD], "silenceSeconds": 60}, node=True), pending(), 1800, id="a new key"
        ),
        pytest.param(seen({"keys": [OLD], "silenceSeconds": 60}, token="n1"), pending(), None, id="a token without it"),
        pytest.param(seen({"keys": [OLD], "silenceSeconds": 60}), pending(NODE), 60, id="a renewal keeps it"),
        pytest.param(seen({"keys": [OLD], "silenceSeconds": 60}), pending(RECOVERING), 60, id="a recovery, too"),
        pytest.param(
            seen({"keys": [OLD], "silenceSeconds": 60}),
            pending("jane", automatic=False),
            None,
            id="a person gives none",
        ),
        pytest.param(
            seen_by_ephemeral(text="soon"), pending(automatic=False), None, id="a person approves an unreadable token"
        ),
        pytest.param(views(), pending(), None, id="a token that was deleted"),
    ],
)
def test_the_silence_of_the_token_is_recorded_with_the_name(
    found: Views, asked: PendingIssue, silence: int | None
) -> None:
    assert written(CHECK.check(asked, found))[1].get("silenceSeconds") == silence


def test_a_name_that_changes_hands_has_not_fallen_silent() -> None:
    _, spec = written(CHECK.check(pending(), seen({"keys": [OLD], "nodeUID": "u0", "endReason": "Silent"})))
    assert "endReason" not in spec


@pytest.mark.parametrize(
    ("found", "asked"),
    [
        pytest.param(seen(FIRST), pending(), id="the approver's claim is enough for the signer"),
        pytest.param(seen(FIRST), pending(now=NOW + timedelta(minutes=5)), id="five minutes later, too"),
        pytest.param(seen({"keys": [ENTRY, OLD]}), pending(NODE), id="a key that is not the newest"),
        pytest.param(seen({"keys": [OLD]}), pending(common_name="jane"), id="a user who is no node"),
        pytest.param(
            seen({"keys": [OLD]}), pending(usage="server auth", signer="kubernetes.io/legacy-unknown"), id="no client"
        ),
        pytest.param(
            seen({"keys": [OLD]}), pending(NODE, signer=KUBELET_SERVING, usage="server auth"), id="a serving key"
        ),
    ],
)
def test_what_needs_no_record(found: Views, asked: PendingIssue) -> None:
    assert CHECK.check(asked, found) is None


RETURNING = {"keys": [OLD], "nodeUID": "u0", "reregisters": True}


def test_a_deleted_node_that_may_return_frees_its_name_until_it_does() -> None:
    """--node-deletion=reregisters: the machine renews as before, and another one may have the name while there is no Node."""
    assert written(CHECK.check(pending(), seen(RETURNING))) == (Update, FIRST)
    assert isinstance(CHECK.check(pending(), seen(RETURNING, node=True)), Hold)
    _, spec = written(CHECK.check(pending(NODE), seen(RETURNING)))
    assert spec["keys"] == [OLD, ENTRY]


def test_a_certificate_of_another_program_has_no_recorded_number() -> None:
    _, spec = written(NameOwnership(lambda signer: None, signing_duration=SIGNING_DURATION).check(pending(), seen()))
    assert spec["keys"] == [{"publicKey": ENTRY["publicKey"], "notAfter": ENTRY["notAfter"]}]
    assert NameOwnership(lambda signer: None, signing_duration=SIGNING_DURATION).check(pending(), seen(spec)) is None


def test_a_late_signature_extends_the_record() -> None:
    asked = pending(now=NOW + timedelta(minutes=6), automatic=False)
    _, spec = written(CHECK.check(asked, seen(FIRST)))
    assert spec["keys"] == [{**ENTRY, "notAfter": moment(YEAR + timedelta(minutes=6))}]


def serving(username: str, name: str = "n1", *, automatic: bool = True) -> PendingIssue:
    return pending(
        username, common_name=f"system:node:{name}", automatic=automatic, signer=KUBELET_SERVING, usage="server auth"
    )


@pytest.mark.parametrize(
    ("found", "asked", "reason", "denies", "words"),
    [
        pytest.param(
            seen({"keys": [OLD]}, node=True), pending(), "NodeNameTaken", False,
            [OLD["publicKey"], ENTRY["publicKey"], "192.0.2.9", "delete node/n1 csr/", "--node-name n1", "csr approve join"],
            id="another key with a token",
        ),
        pytest.param(
            seen({"keys": [OLD]}), pending(source=""), "NodeNameTaken", False, ["delete nodeidentity/n1 csr/", "request has"],
            id="another key for a machine that has not registered",
        ),
        pytest.param(seen(node=True), pending(), "NodeNameTaken", False, ["not recorded"], id="a Node without a record"),
        pytest.param(seen({}, node=True), pending(), "NodeNameTaken", False, ["not recorded"], id="or with an empty one"),
        pytest.param(seen({"keys": [OLD]}, token="n*"), pending(), "NodeNameTaken", False, [], id="a token for a pattern"),
        pytest.param(seen({"keys": [OLD]}, token="n1"), pending("system:bootstrap:fedcba"), "NodeNameTaken", False, [],
                     id="another token"),
        pytest.param(seen({"keys": [OLD]}, token="n1"), pending("jane"), "NodeNameTaken", False, [], id="a user of any name"),
        pytest.param(seen({"keys": [OLD]}), pending("system:node:n2"), "NodeNameTaken", False, [], id="another node"),
        pytest.param(seen({"keys": [OLD], "nodeUID": "u0"}), pending(NODE), "NodeDeleted", False, ["mooring join"],
                     id="a renewal after the Node was deleted"),
        pytest.param(seen({"keys": [OLD], "nodeUID": "u0"}), pending(RECOVERING), "NodeDeleted", False, [],
                     id="the way back after the Node was deleted"),
        pytest.param(seen({"nodeUID": "u0"}), serving(NODE), "NodeDeleted", False, [], id="its serving certificate"),
        pytest.param(seen(), pending(common_name="system:node:N1"), "NodeNameInvalid", True, ["N1"], id="upper case"),
        pytest.param(seen(), pending(common_name="system:node:"), "NodeNameInvalid", True, [], id="no name"),
        pytest.param(seen(), pending(common_name="system:node:n1 "), "NodeNameInvalid", True, [], id="a space"),
        pytest.param(seen(), serving("jane", automatic=False), None, True, [],
                     id="no hold on a serving certificate that a person approved"),
        pytest.param(seen(), serving("jane", "N1", automatic=False), "NodeNameInvalid", True, [],
                     id="the name of a serving certificate"),
    ],
)  # fmt: skip
def test_what_is_held_or_denied(
    found: Views, asked: PendingIssue, reason: str | None, denies: bool, words: list[str]
) -> None:
    finding = CHECK.check(asked, found)
    if reason is None:
        assert finding is None
        return
    assert isinstance(finding, Hold)
    assert (finding.reason, finding.denies) == (reason, denies)
    for word in words:
        assert word in finding.message


def held_before(name: str = "NodeNameTaken") -> Obj:
    return {"conditions": [{"type": "NeedsApproval", "status": "True", "reason": name}]}


LATER = {"changedAt": moment(HOUR)}


@pytest.mark.parametrize(
    ("found", "asked", "reason"),
    [
        pytest.param(seen({"keys": [OLD], "nodeUID": "u0", **LATER}), pending(), "NodeNameTaken",
                     id="a request that was made before the Node was deleted"),
        pytest.param(seen({"keys": [OLD], "nodeUID": "u0"}), pending(status=held_before()), "NodeNameTaken",
                     id="one that was held while another machine had the name"),
        pytest.param(seen(), pending(status=held_before()), "NodeNameTaken", id="also when the record of the name is gone"),
        pytest.param(seen({"keys": [OLD], "nodeUID": "u0"}), pending(status=held_before("NotGranted")), "",
                     id="one that was held for another reason"),
        pytest.param(seen({"keys": [OLD], "nodeUID": "u0", **LATER}), pending(automatic=False), "", id="a person decides"),
        pytest.param(seen({"keys": [OLD], "nodeUID": "u0", **LATER}, token="n1"), pending(), "", id="or a token for the name"),
        pytest.param(seen({"keys": [OLD], **LATER}), pending(NODE), "NodeNameTaken", id="a renewal of the former owner"),
        pytest.param(seen({"keys": [OLD], **LATER}), pending(RECOVERING), "NodeNameTaken", id="its way back"),
        pytest.param(seen({"keys": [OLD], **LATER}), serving(NODE), "NodeNameTaken", id="its serving certificate"),
        pytest.param(seen({"keys": [{**ENTRY, "serialNumber": "1"}], **LATER}), pending(), "", id="a key of the present owner"),
        pytest.param(seen({**RETURNING, **LATER}), pending(NODE), "", id="a machine that may create its Node again"),
        pytest.param(seen({"keys": [OLD], "nodeUID": "u1"}, node=True, held=True), pending(), "NodeTerminating",
                     id="finalizers hold the deleted Node"),
        pytest.param(seen({"keys": [OLD], "nodeUID": "u1"}, node=True, held=True), pending(NODE), "NodeDeleted",
                     id="and the machine is no member any more"),
        pytest.param(seen({"keys": [OLD], "nodeUID": "u1"}, node=True, held=True), serving(NODE), "NodeDeleted",
                     id="nor gets a serving certificate"),
        pytest.param(seen({"keys": [OLD], "nodeUID": "u1"}, node=True, held=True), pending(automatic=False), "",
                     id="a person need not wait for the finalizers"),
    ],
)  # fmt: skip
def test_a_request_that_waited_gains_nothing_by_a_change(found: Views, asked: PendingIssue, reason: str) -> None:
    finding = CHECK.check(asked, found)
    assert (finding.reason if isinstance(finding, Hold) else "") == reason


def test_a_name_that_is_held_by_finalizers_says_which() -> None:
    finding = CHECK.check(pending(), seen({"keys": [OLD], "nodeUID": "u1"}, node=True, held=True))
    assert isinstance(finding, Hold)
    assert "example.com/hold" in finding.message


@pytest.mark.parametrize(
    ("found", "asked"),
    [
        pytest.param(seen(), pending(), id="a free name"),
        pytest.param(seen({"keys": [OLD], "nodeUID": "u0"}), pending(), id="a deleted Node"),
        pytest.param(seen({"keys": [OLD]}, node=True), pending(automatic=False), id="a person"),
    ],
)
def test_when_a_name_changes_hands_is_recorded(found: Views, asked: PendingIssue) -> None:
    finding = CHECK.check(asked, found)
    assert isinstance(finding, Reservation)
    (action,) = finding.actions
    assert isinstance(action, Create | Update)
    assert action.obj["spec"]["changedAt"] == moment(timedelta(0))


def test_a_date_that_another_server_wrote_wrongly_drops_no_key() -> None:
    finding = CHECK.check(pending(NODE), seen({"keys": [{**OLD, "notAfter": "junk"}]}))
    assert isinstance(finding, Reservation)
    (update,) = finding.actions
    assert isinstance(update, Update)
    assert len(update.obj["spec"]["keys"]) == 2


LONG_AGO, JUST_NOW = {"recordedAt": moment(-HOUR)}, {"recordedAt": moment(timedelta(minutes=-59))}


def by_key(number: int, **more: Any) -> PendingIssue:
    """Return a request of the machine that was made with the certificate of a key."""
    key = "sha256:" + f"{number:064x}"
    facts = {
        "commonName": NODE, "nodeName": "n1", "fingerprint": key, "serialNumber": f"{number:x}", "publicKey": key,
        "issuer": key, "issuedAt": moment(-HOUR), "path": [],
    }  # fmt: skip
    asked = pending(NODE, **more)
    asked.csr["metadata"]["annotations"][REQUESTER_CERTIFICATE] = json.dumps(facts)
    return asked


@pytest.mark.parametrize(
    ("times", "used", "asked", "dropped"),
    [
        pytest.param({}, (0, 1, 3), pending(NODE), 2, id="the oldest that was never used: its reply was lost"),
        pytest.param(LONG_AGO, (0, 1, 3), pending(NODE), 2, id="also where its age is known"),
        pytest.param(JUST_NOW, (0, 1, 3), pending(NODE), None, id="one that its machine may still use stays"),
        pytest.param({}, range(MAX_KEYS - 1), pending(NODE), MAX_KEYS - 1, id="also where it is the newest"),
        pytest.param({}, range(MAX_KEYS), pending(NODE), None, id="all are used: a copy must not push the machine out"),
        pytest.param(
            {},
            range(MAX_KEYS),
            pending(NODE, automatic=False),
            None,
            id="also for a person, who does not know which one would go",
        ),
        pytest.param({}, (), by_key(0), 1, id="the key with which the machine asks stays"),
    ],
)
def test_what_makes_room_among_many_keys(
    times: Obj, used: Sequence[int], asked: PendingIssue, dropped: int | None
) -> None:
    keys = [
        {"publicKey": "sha256:" + f"{number:064x}", "notAfter": moment(HOUR), **times} for number in range(MAX_KEYS)
    ]
    uses = [
        {"certificate": keys[one]["publicKey"], "publicKey": keys[one]["publicKey"], "firstUsed": moment(-HOUR)}
        for one in used
    ]
    finding = CHECK.check(
        asked, views(nodeidentities=[thing("n1", spec={"keys": keys}, status={"certificates": uses})], nodes=NODES)
    )
    if dropped is None:
        assert isinstance(finding, Hold)
        assert (finding.reason, finding.denies) == ("TooManyCertificates", False)
        assert "mooring node split n1 --keep KEY" in finding.message
    else:
        plain = without_times({"keys": keys})["keys"]
        left = written(finding)[1]["keys"]
        assert left[:-1] == [*plain[:dropped], *plain[dropped + 1 :]]
        assert left[-1]["publicKey"] == ENTRY["publicKey"]


@pytest.mark.parametrize(
    ("entry", "dropped"),
    [
        pytest.param("key-" + f"{3:064x}", 3, id="by its key"),
        pytest.param("serial-a3", 3, id="by its serial number"),
        pytest.param("key-" + "f" * 64, None, id="another one"),
    ],
)
def test_a_revoked_certificate_makes_room(entry: str, dropped: int | None) -> None:
    keys = [
        {"publicKey": "sha256:" + f"{number:064x}", "serialNumber": f"a{number:x}", "notAfter": moment(HOUR)}
        for number in range(MAX_KEYS)
    ]
    uses = [
        {"certificate": key["publicKey"], "publicKey": key["publicKey"], "firstUsed": moment(-HOUR)} for key in keys
    ]
    found = views(
        nodeidentities=[thing("n1", spec={"keys": keys, "companions": keys}, status={"certificates": uses})],
        nodes=NODES,
        certificaterevocations=[thing(entry)],
    )
    finding = CHECK.check(pending(NODE), found)
    if dropped is None:
        assert isinstance(finding, Hold)
    else:
        left = [one["publicKey"] for one in written(finding)[1]["keys"]]
        assert left[:-1] == [key["publicKey"] for key in (*keys[:dropped], *keys[dropped + 1 :])]


def test_a_proof_of_the_machine_that_expired_makes_room_for_a_copy_that_comes_back() -> None:
    keys = [{"publicKey": "sha256:" + f"{number:064x}", "notAfter": moment(HOUR)} for number in range(MAX_KEYS)]
    for key in keys[:2]:
        key["notAfter"] = moment(-HOUR)
    uses = [
        {"certificate": key["publicKey"], "publicKey": key["publicKey"], "firstUsed": moment(-HOUR)} for key in keys
    ]
    by_copy = pending(RECOVERING, extra={"recovery.mooring.dev/public-key": [keys[1]["publicKey"]]})
    found = views(nodeidentities=[thing("n1", spec={"keys": keys}, status={"certificates": uses})], nodes=NODES)
    assert written(CHECK.check(by_copy, found))[1]["keys"] == [*keys[1:], ENTRY]


def test_a_request_that_is_approved_late_leaves_the_machine_its_proof() -> None:
    keys = [{**OLD, "notAfter": moment(-HOUR), "publicKey": "sha256:" + f"{number:064x}"} for number in (1, 2)]
    uses = [
        {"certificate": key["publicKey"], "publicKey": key["publicKey"], "firstUsed": moment(-HOUR)} for key in keys
    ]
    found = views(nodeidentities=[thing("n1", spec={"keys": keys}, status={"certificates": uses})], nodes=NODES)
    left = written(CHECK.check(by_key(2, automatic=False), found))[1]["keys"]
    assert [one["publicKey"] for one in left] == [keys[1]["publicKey"], ENTRY["publicKey"]], (
        "it may not have the key of this request any more"
    )


def test_a_copy_that_comes_back_first_leaves_the_machine_its_proof() -> None:
    ended, parent = {"notAfter": moment(-HOUR)}, "sha256:" + "d" * 64
    keys = [{**OLD, **ended, "publicKey": f"sha256:{name * 64}"} for name in "abe"]
    uses = [
        {"certificate": parent, "publicKey": keys[0]["publicKey"], "firstUsed": moment(-HOUR)},
        {
            "certificate": keys[1]["publicKey"],
            "publicKey": keys[1]["publicKey"],
            "parent": parent,
            "firstUsed": moment(-HOUR),
        },
        {
            "certificate": keys[2]["publicKey"],
            "publicKey": keys[2]["publicKey"],
            "parent": parent,
            "firstUsed": moment(-HOUR),
        },
    ]
    identity = thing("n1", spec={"keys": keys}, status={"certificates": uses})
    by_copy = pending(RECOVERING, extra={"recovery.mooring.dev/public-key": [keys[1]["publicKey"]]})
    seen_ = views(nodeidentities=[identity], nodes=NODES)
    assert written(CHECK.check(by_copy, seen_))[1]["keys"] == [keys[1], keys[2], ENTRY], "its parent is of no use"
    assert written(CHECK.check(pending(NODE), seen_))[1]["keys"] == [ENTRY], "a renewal drops what has expired"


def test_a_new_entry_says_when_it_was_made() -> None:
    finding = CHECK.check(pending(NODE), seen({"keys": [OLD]}))
    assert isinstance(finding, Reservation)
    (update,) = finding.actions
    assert isinstance(update, Update)
    assert update.obj["spec"]["keys"][-1]["recordedAt"] == moment(timedelta(0))


def test_the_record_of_a_short_certificate_ends_soon_after_it() -> None:
    _, spec = written(CHECK.check(pending(NODE, expirationSeconds=600), seen({"keys": [OLD]})))
    assert spec["keys"][-1]["notAfter"] <= moment(timedelta(minutes=15))
