"""Issuance checks of a join by k3s's way: who gets the name, what a token counts, and which machines may join."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from mooring.api.certificates.requestrecords import REQUESTER_CERTIFICATE
from mooring.api.certificates.requeststate import parsed_request
from mooring.api.mooring.certificaterevocation import node_entry
from mooring.api.mooring.nodeidentity import KIND, MAX_KEYS
from mooring.api.view import FixedView, Views
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.controllers.actions import Create, Update
from mooring.controllers.certificates.cleaner import RevokedRequests
from mooring.controllers.certificates.inventory import MachineInventory
from mooring.controllers.certificates.issuance import CheckResult, Hold, PendingIssue, Reservation
from mooring.controllers.certificates.requester import BootstrapTokenCheck, join_refusal
from mooring.controllers.certificates.sanpolicy.ownership import NameOwnership, password_hold
from mooring.pki.keys import generate_key, public_key_fingerprint
from mooring.pki.x509.authority import request_serial_number
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import (
    CREDENTIAL,
    K3S_CONTROLLER_CLIENT,
    K3S_KUBE_PROXY_CLIENT,
    K3S_KUBELET_CLIENT,
    K3S_KUBELET_SERVING,
    NODE_NAME,
    NODE_PASSWORD,
    NODE_SIGNERS,
    PASSWORD_DEFERRED,
    usages_of,
)
from mooring.settings.signing import SIGNING_DURATION
from mooring.trust.bootstraptoken.restrictions import join_record, joined_keys
from tests.controllers.test_nameownership import without_times
from tests.support.plans import HOUR, NOW, moment, thing, views
from tests.support.testca import ThrowawayCA

CA = ThrowawayCA(now=NOW)
OWNERSHIP = NameOwnership(CA.cluster_ca.for_signer, signing_duration=SIGNING_DURATION)
KEYS = {signer: generate_key() for signer in (*NODE_SIGNERS, K3S_KUBE_PROXY_CLIENT, K3S_CONTROLLER_CLIENT)}
AGENT, TOKEN, NODE = "node", "system:bootstrap:abcdef", "system:node:n1"
PASSWORD, OTHER_PASSWORD = "uid-of-password", "uid-of-another"
HERE = "192.0.2.9"


def asked(
    signer: str = K3S_KUBELET_CLIENT,
    username: str = AGENT,
    *,
    password: str = PASSWORD,
    name: str = "n1",
    source: str = HERE,
    automatic: bool = True,
) -> PendingIssue:
    pem = build_request(KEYS[signer], "kubernetes-admin", ("system:masters",))
    extra: dict[str, list[str]] = {CREDENTIAL: ["k3s-token"], NODE_NAME: [name]}
    if signer in NODE_SIGNERS:
        extra[NODE_PASSWORD] = [password] if password else []
    spec = {
        "request": base64.b64encode(pem).decode(),
        "signerName": signer,
        "username": username,
        "usages": list(usages_of(signer, is_rsa=False)),
        "extra": extra,
    }
    noted = {"annotations": {"mooring.dev/source-address": source}} if source else {}
    csr = thing("join", spec=spec, metadata={"creationTimestamp": rfc3339(NOW), **noted})
    return PendingIssue(csr=csr, request=parsed_request(csr), now=NOW, automatic=automatic)


ENTRY = {
    "publicKey": f"sha256:{public_key_fingerprint(KEYS[K3S_KUBELET_CLIENT])}",
    "serialNumber": f"{request_serial_number('uid-of-join'):x}",
    "issuer": f"sha256:{public_key_fingerprint(CA.certificate.public_key())}",  # type: ignore[arg-type]  # an ECDSA key
    "notAfter": moment(timedelta(days=365)),
}
OLD = {"publicKey": "sha256:" + "0" * 64, "notAfter": moment(HOUR)}
OWNED = {"keys": [OLD], "nodePasswordUID": PASSWORD}


def seen(
    spec: Obj | None = None,
    *,
    node: bool = False,
    secret: str = PASSWORD,
    token_for: str = "",
    **objects: Sequence[Obj],
) -> Views:
    """Return views with the record of the name, its Node, and the Secret of its password."""
    made = {"uid": secret, "creationTimestamp": moment(-HOUR)}
    stored = [thing("n1.node-password.k3s", "kube-system", metadata=made)] if secret else []
    if token_for:
        annotations = {"mooring.dev/node-name": token_for}
        stored.append(thing("bootstrap-token-abcdef", "kube-system", metadata={"annotations": annotations}))
    return views(
        nodeidentities=[thing("n1", spec=spec)] if spec is not None else [],
        nodes=[thing("n1", metadata={"uid": "u1"})] if node else [],
        secrets=stored,
        **objects,
    )


def written(finding: CheckResult | None) -> tuple[type, Obj]:
    """Return the kind of the only action, and the spec that it writes."""
    assert isinstance(finding, Reservation)
    (action,) = finding.actions
    assert isinstance(action, Create | Update)
    assert (action.plural, action.obj["metadata"]["name"]) == ("nodeidentities", "n1")
    assert KIND.validate(action.obj) == []
    return type(action), without_times(action.obj["spec"])


BY_CERTIFICATE = ["X509SHA256=" + "c" * 64]
"""Credential of a request that was made with a client certificate, and not with a token."""


@pytest.mark.parametrize(
    ("username", "credential", "field", "same", "dropped"),
    [
        pytest.param(AGENT, [], {}, None, 0, id="a token and the password: the oldest"),
        pytest.param(
            AGENT, [], {"recordedAt": moment(-2 * HOUR)}, None, 1, id="but none from before the password was set"
        ),
        pytest.param(AGENT, [], {"parent": OLD["publicKey"]}, None, 1, id="and no renewal"),
        pytest.param(NODE, BY_CERTIFICATE, {}, None, None, id="the password alone, which a copy has, too: none"),
        pytest.param(NODE, BY_CERTIFICATE, {}, 2, 2, id="but an earlier certificate of the same key"),
        pytest.param(AGENT, [], {}, 2, 2, id="which goes before the oldest"),
        pytest.param(AGENT, [], {}, MAX_KEYS - 1, MAX_KEYS - 1, id="also where it is the newest"),
    ],
)
def test_which_key_makes_room_at_a_start_by_k3s_way(
    username: str, credential: list[str], field: Obj, same: int | None, dropped: int | None
) -> None:
    """An agent of k3s gets another certificate at each start, for the key that it keeps."""
    keys = [
        {**OLD, "publicKey": "sha256:" + f"{number:064x}", "recordedAt": moment(-HOUR)} for number in range(MAX_KEYS)
    ]
    keys[0] |= field
    if same is not None:
        keys[same]["publicKey"] = ENTRY["publicKey"]
    uses = [
        {"certificate": OLD["publicKey"], "publicKey": key["publicKey"], "firstUsed": moment(-HOUR)} for key in keys
    ]
    found = dict(seen({**OWNED, "keys": keys}, node=True))
    (obj,) = found["nodeidentities"].list()
    found["nodeidentities"] = FixedView([{**obj, "status": {"certificates": uses}}])
    request = asked(username=username)
    request.csr["spec"]["extra"]["authentication.kubernetes.io/credential-id"] = credential
    finding = OWNERSHIP.check(request, found)
    if dropped is None:
        assert reason(finding) == "TooManyCertificates"
    else:
        left = [key["publicKey"] for key in written(finding)[1]["keys"]]
        assert left == [key["publicKey"] for key in (*keys[:dropped], *keys[dropped + 1 :], ENTRY)]


def reason(finding: CheckResult | None) -> str:
    return finding.reason if isinstance(finding, Hold) else ""


JOINED = {"keys": [ENTRY], "sourceAddress": HERE, "nodePasswordUID": PASSWORD}
RESERVED = {"nodePasswordUID": PASSWORD}
NAMED = {"certifiedNames": [{"name": "vault.example.com", "notAfter": moment(HOUR)}]}
SERVING_ENTRY = {**ENTRY, "publicKey": f"sha256:{public_key_fingerprint(KEYS[K3S_KUBELET_SERVING])}"}


@pytest.mark.parametrize(
    ("found", "request_", "action", "spec"),
    [
        pytest.param(seen(), asked(K3S_KUBELET_SERVING), Create, {**RESERVED, "sourceAddress": HERE},
            id="the first request reserves the name"),
        pytest.param(seen(RESERVED), asked(), Update, JOINED, id="the second records the key"),
        pytest.param(seen(), asked(), Create, JOINED, id="and claims a free name by itself"),
        pytest.param(
            seen(OWNED, node=True), asked(), Update, {**JOINED, "keys": [OLD, ENTRY]},
            id="a machine that proves the password has another key",
        ),
        pytest.param(
            seen(OWNED, node=True), asked(username=TOKEN), Update,
            {**JOINED, "keys": [OLD, ENTRY], "token": "abcdef"}, id="with another token, too",
        ),
        pytest.param(
            seen({**OWNED, "token": "fedcba"}, node=True), asked(), Update,
            {**JOINED, "keys": [OLD, ENTRY], "token": "fedcba"},
            id="the token of the cluster says nothing in place of that of the join",
        ),
        pytest.param(
            seen(OWNED, node=True), asked(username=NODE, password=""), Update, {**JOINED, "keys": [OLD, ENTRY]},
            id="a request without the password leaves it with the name",
        ),
        pytest.param(
            seen({"keys": [OLD]}, node=True), asked(username=NODE), Update, {**JOINED, "keys": [OLD, ENTRY]},
            id="a machine that joined by kubeadm's way sets a password with its certificate",
        ),
        pytest.param(
            seen({"keys": [{**ENTRY, "serialNumber": "1"}]}, node=True), asked(), Update,
            {**JOINED, "keys": [{**ENTRY, "serialNumber": "1"}, ENTRY]}, id="or with its key",
        ),
        pytest.param(
            seen({"keys": [OLD]}, node=True), asked(K3S_KUBELET_SERVING, NODE), Update, OWNED,
            id="before it requests the certificate with the key",
        ),
        pytest.param(
            seen({**OWNED, "nodeUID": "u0"}, secret=OTHER_PASSWORD), asked(password=OTHER_PASSWORD), Update,
            {**JOINED, "nodePasswordUID": OTHER_PASSWORD}, id="a deleted Node frees its name",
        ),
        pytest.param(
            seen({**OWNED, "nodeUID": "u0"}), asked(), Update, JOINED, id="for the machine that knows its password, too"
        ),
        pytest.param(
            seen({**OWNED, "nodeUID": "u0", **NAMED}, secret=OTHER_PASSWORD),
            asked(K3S_KUBELET_SERVING, password=OTHER_PASSWORD),
            Update, {**OWNED, "nodeUID": "u0", "nodePasswordUID": OTHER_PASSWORD},
            id="and its old keys stay refused until there is a new one",
        ),
        pytest.param(
            seen(OWNED, secret=OTHER_PASSWORD), asked(password=OTHER_PASSWORD), Update,
            {**JOINED, "nodePasswordUID": OTHER_PASSWORD}, id="the Secret was deleted: the next password has the name",
        ),
        pytest.param(
            seen({"keys": [OLD]}, node=True, token_for="n1"), asked(username=TOKEN), Update, {**JOINED, "token": "abcdef"},
            id="a token for this name replaces",
        ),
        pytest.param(
            seen({"keys": [OLD], "companions": [OLD], **NAMED}, node=True, token_for="n1"), asked(K3S_KUBELET_SERVING, TOKEN),
            Update, {**JOINED, "keys": [SERVING_ENTRY], "token": "abcdef"}, id="with the serving certificate, which comes first",
        ),
        pytest.param(
            seen({**OWNED, **NAMED}, node=True, secret=OTHER_PASSWORD), asked(K3S_KUBELET_SERVING, password=OTHER_PASSWORD),
            Update, {**JOINED, "keys": [SERVING_ENTRY], "nodePasswordUID": OTHER_PASSWORD},
            id="and so does the next password after the Secret was deleted",
        ),
        pytest.param(
            seen({**RESERVED, **NAMED}, secret=OTHER_PASSWORD), asked(K3S_KUBELET_SERVING, password=OTHER_PASSWORD),
            Update, {"nodePasswordUID": OTHER_PASSWORD}, id="a name that was reserved and never used",
        ),
        pytest.param(
            seen({"keys": [OLD], **NAMED}, node=True), asked(K3S_KUBELET_SERVING, NODE), Update, {**OWNED, **NAMED},
            id="the machine keeps its names",
        ),
        pytest.param(
            seen({"keys": [OLD]}, node=True), asked(automatic=False), Update, JOINED, id="an approval of a person replaces"
        ),
        pytest.param(
            seen(secret=""), asked(), Create, {"keys": [ENTRY], "sourceAddress": HERE},
            id="a password whose Secret is gone is not recorded",
        ),
    ],
)  # fmt: skip
def test_what_is_recorded_about_a_name(found: Views, request_: PendingIssue, action: type, spec: Obj) -> None:
    assert written(OWNERSHIP.check(request_, found)) == (action, spec)


@pytest.mark.parametrize(
    ("found", "username", "changes"),
    [
        pytest.param(seen(OWNED, secret=OTHER_PASSWORD), AGENT, True, id="the Secret was deleted"),
        pytest.param(
            seen({"keys": [OLD]}, node=True, secret=OTHER_PASSWORD, token_for="n1"), TOKEN, True, id="a token"
        ),
        pytest.param(seen({"keys": [OLD]}, node=True, secret=OTHER_PASSWORD), NODE, False, id="the machine itself"),
        pytest.param(
            seen({**OWNED, "nodeUID": "u0"}, secret=OTHER_PASSWORD), AGENT, False, id="the end was a change already"
        ),
    ],
)
def test_a_password_of_another_machine_changes_the_hands_of_a_name(found: Views, username: str, changes: bool) -> None:
    finding = OWNERSHIP.check(asked(K3S_KUBELET_SERVING, username, password=OTHER_PASSWORD), found)
    assert isinstance(finding, Reservation)
    (action,) = finding.actions
    assert isinstance(action, Update)
    assert action.obj["spec"].get("changedAt") == (rfc3339(NOW) if changes else None)


@pytest.mark.parametrize(
    ("found", "request_", "expected"),
    [
        pytest.param(seen(RESERVED), asked(K3S_KUBELET_SERVING), "", id="a reservation is made once"),
        pytest.param(seen(JOINED), asked(), "", id="a key is recorded once"),
        pytest.param(seen(OWNED, node=True), asked(K3S_KUBELET_SERVING), "", id="the owner's serving certificate"),
        pytest.param(
            seen(secret=""), asked(K3S_KUBELET_SERVING, password=""), "NodePasswordMissing",
            id="a serving certificate that would reserve nothing",
        ),
        pytest.param(
            seen(secret=""), asked(K3S_KUBELET_SERVING), "NodePasswordMissing", id="a password that was deleted since"
        ),
        pytest.param(
            seen(secret=""), asked(K3S_KUBELET_SERVING, password=PASSWORD_DEFERRED), "",
            id="a password that the operator lets through",
        ),
        pytest.param(
            seen(secret=""), asked(K3S_KUBELET_SERVING, password="", automatic=False), "", id="the approval of a person"
        ),
        pytest.param(
            seen(secret=""), replace(asked(K3S_KUBELET_SERVING, password=""), precedes_password=True), "",
            id="the judgement before the password is stored",
        ),
        pytest.param(
            seen({"keys": [OLD]}, node=True), asked(K3S_KUBELET_SERVING, NODE, password=""), "",
            id="a node that has no password",
        ),
        pytest.param(
            seen({"keys": [OLD]}, node=True), asked(), "NodeNameTaken", id="a name of a machine of kubeadm's way"
        ),
        pytest.param(
            seen({"keys": [OLD]}, node=True), asked(K3S_KUBELET_SERVING), "NodeNameTaken", id="its serving certificate"
        ),
        pytest.param(seen(node=True), asked(), "NodeNameTaken", id="a Node that is older than its record"),
        pytest.param(
            seen(OWNED, node=True, secret=""), asked(), "NodeNameTaken", id="a password whose Secret was deleted since"
        ),
        pytest.param(
            seen(OWNED, node=True), asked(password=""), "NodeNameTaken", id="a password that was not verified"
        ),
        pytest.param(
            seen(RESERVED), asked(password=OTHER_PASSWORD), "NodeNameTaken", id="a name that another machine reserved"
        ),
        pytest.param(
            seen({**OWNED, "nodeUID": "u0"}), asked(password=""), "NodeNameTaken",
            id="a deleted Node whose password still stands",
        ),
        pytest.param(
            seen({**OWNED, "nodeUID": "u0"}), asked(username=NODE), "NodeDeleted", id="a certificate of a deleted Node"
        ),
        pytest.param(
            seen({**OWNED, "nodeUID": "u0"}), asked(K3S_KUBELET_SERVING, NODE), "NodeDeleted", id="in each request"
        ),
        pytest.param(seen(), asked(K3S_KUBELET_SERVING, name="N1"), "NodeNameInvalid", id="a name no Node can have"),
    ],
)  # fmt: skip
def test_what_is_held(found: Views, request_: PendingIssue, expected: str) -> None:
    finding = OWNERSHIP.check(request_, found)
    assert reason(finding) == expected
    if not expected:
        assert finding is None


@pytest.mark.parametrize(
    ("found", "username", "allowed"),
    [
        pytest.param(seen(secret=""), AGENT, True, id="a free name"),
        pytest.param(seen({**OWNED, "nodeUID": "u0"}, secret=""), AGENT, True, id="the name of a deleted Node"),
        pytest.param(seen(OWNED, node=True, secret=""), AGENT, True, id="a name whose Secret was deleted"),
        pytest.param(seen({"keys": [OLD]}, node=True, secret=""), NODE, True, id="the machine itself"),
        pytest.param(
            seen({"keys": [OLD]}, node=True, secret="", token_for="n1"), TOKEN, True, id="a token for this name"
        ),
        pytest.param(seen({"keys": [OLD]}, node=True, secret=""), AGENT, False, id="the name of another machine"),
        pytest.param(seen({"keys": [OLD]}, secret=""), TOKEN, False, id="of one that has not registered"),
        pytest.param(seen(node=True, secret=""), AGENT, False, id="a Node that is older than its record"),
    ],
)
def test_who_sets_the_first_password_of_a_name(found: Views, username: str, allowed: bool) -> None:
    refusal = password_hold("n1", username, found)
    assert (refusal == "") is allowed
    if not allowed:
        assert "belongs to another machine" in refusal
        assert "kubectl delete node" in refusal


def token(**annotations: str) -> Obj:
    named = {f"mooring.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    return thing(
        "bootstrap-token-abcdef", type="bootstrap.kubernetes.io/token",
        metadata={"namespace": "kube-system", "annotations": named},
    )  # fmt: skip


JOIN = join_record(PASSWORD, NODE)
MACHINE = thing("n1", spec={"keys": [ENTRY], "token": "abcdef", "sourceAddress": HERE})


def limited(request_: PendingIssue, secret: Obj, *identities: Obj) -> CheckResult | None:
    return BootstrapTokenCheck(True).check(request_, views(secrets=[secret], nodeidentities=identities))


COMPANION = {
    **ENTRY,
    "publicKey": f"sha256:{public_key_fingerprint(KEYS[K3S_KUBE_PROXY_CLIENT])}",
}
FORMER = {**OLD, "notAfter": moment(-HOUR)}
SAME = {**OLD, "publicKey": COMPANION["publicKey"]}


@pytest.mark.parametrize(
    ("found", "action", "spec"),
    [
        pytest.param(seen(OWNED, node=True), Update, {**OWNED, "companions": [COMPANION]}, id="a machine that joined"),
        pytest.param(
            seen({**OWNED, "companions": [FORMER, OLD]}), Update, {**OWNED, "companions": [OLD, COMPANION]},
            id="expired ones are dropped",
        ),
        pytest.param(
            seen({**OWNED, "companions": [{**COMPANION, "notAfter": moment(HOUR)}]}), Update,
            {**OWNED, "companions": [COMPANION]}, id="a late signature extends the record",
        ),
        pytest.param(
            seen({**OWNED, "companions": [OLD, SAME, *[OLD] * (MAX_KEYS - 2)]}), Update,
            {**OWNED, "companions": [*[OLD] * (MAX_KEYS - 1), COMPANION]}, id="among many an earlier one of the same key",
        ),
        pytest.param(seen(), Create, {"companions": [COMPANION], "sourceAddress": HERE}, id="one older than its record"),
    ],
)  # fmt: skip
def test_a_certificate_of_a_shared_user_is_recorded_with_its_machine(found: Views, action: type, spec: Obj) -> None:
    assert written(OWNERSHIP.check(asked(K3S_KUBE_PROXY_CLIENT, NODE), found)) == (action, spec)


@pytest.mark.parametrize(
    ("found", "username", "automatic", "expected"),
    [
        pytest.param(seen(OWNED, node=True), AGENT, True, "NodeNameTaken", id="the shared token proves no machine"),
        pytest.param(seen(OWNED, node=True), TOKEN, True, "NodeNameTaken", id="nor does a bootstrap token"),
        pytest.param(seen(OWNED, node=True), "system:node:n2", True, "NodeNameTaken", id="another machine"),
        pytest.param(seen({**OWNED, "nodeUID": "u0"}), NODE, True, "NodeDeleted", id="a machine whose Node was deleted"),
        pytest.param(
            seen({**OWNED, "changedAt": moment(HOUR)}), NODE, True, "NodeNameTaken", id="the former owner of the name"
        ),
        pytest.param(seen({**OWNED, "companions": [COMPANION]}, node=True), NODE, True, "", id="the signer finds it recorded"),
    ],
)  # fmt: skip
def test_who_has_a_certificate_of_a_shared_user(found: Views, username: str, automatic: bool, expected: str) -> None:
    finding = OWNERSHIP.check(asked(K3S_KUBE_PROXY_CLIENT, username, automatic=automatic), found)
    assert reason(finding) == expected
    assert isinstance(finding, Hold) or finding is None


def test_many_certificates_of_shared_users_wait_for_room() -> None:
    """A copy of the machine must not push out those of the machine."""
    found = seen({**OWNED, "companions": [OLD] * MAX_KEYS}, node=True)
    assert reason(OWNERSHIP.check(asked(K3S_KUBE_PROXY_CLIENT, NODE), found)) == "TooManyCertificates"
    approved = OWNERSHIP.check(asked(K3S_KUBE_PROXY_CLIENT, NODE, automatic=False), found)
    assert reason(approved) == "TooManyCertificates", "who does not know which one would go"


@pytest.mark.parametrize(
    ("key", "has_room"),
    [
        pytest.param(
            {"recordedAt": moment(timedelta(minutes=-9))}, True, id="the start of an agent that makes new keys"
        ),
        pytest.param({"recordedAt": moment(timedelta(minutes=-10))}, False, id="a while after the start"),
        pytest.param(
            {"recordedAt": moment(timedelta(0)), "parent": OLD["publicKey"]},
            False,
            id="a renewal, which a copy makes, too",
        ),
        pytest.param(
            {"serialNumber": "ac", "recordedAt": moment(timedelta(0))}, False, id="the certificate of another key"
        ),
    ],
)
def test_the_oldest_certificate_of_a_shared_user_makes_room_at_a_start(key: Obj, has_room: bool) -> None:
    keys = [{**OLD, "serialNumber": "aa"}, {**OLD, "serialNumber": "ab", **key}]
    request = asked(K3S_KUBE_PROXY_CLIENT, NODE)
    facts = {
        "commonName": NODE, "nodeName": "n1", "fingerprint": "f", "serialNumber": "ab", "publicKey": OLD["publicKey"],
        "issuer": "i", "issuedAt": moment(-HOUR), "path": [],
    }  # fmt: skip
    request.csr["metadata"]["annotations"][REQUESTER_CERTIFICATE] = json.dumps(facts)
    finding = OWNERSHIP.check(request, seen({**OWNED, "keys": keys, "companions": [OLD] * MAX_KEYS}, node=True))
    assert (reason(finding) == "") is has_room


def test_a_person_may_approve_a_certificate_of_a_shared_user() -> None:
    finding = OWNERSHIP.check(asked(K3S_KUBE_PROXY_CLIENT, AGENT, automatic=False), seen({**OWNED, "nodeUID": "u0"}))
    assert written(finding) == (Update, {**OWNED, "nodeUID": "u0", "companions": [COMPANION]})


def test_another_owner_of_the_name_does_not_inherit_companions() -> None:
    found = seen({"keys": [OLD], "companions": [COMPANION], "nodeUID": "u0"}, secret="")
    _, spec = written(OWNERSHIP.check(asked(password=""), found))
    assert "companions" not in spec


def test_four_certificates_are_one_join() -> None:
    secret = token(max_joins="1")
    finding = limited(asked(K3S_KUBELET_SERVING, TOKEN), secret)
    assert isinstance(finding, Reservation)
    (update,) = finding.actions
    assert isinstance(update, Update)
    assert joined_keys(update.obj) == (JOIN,)
    counted = token(max_joins="1", joined_keys=JOIN)
    for signer in NODE_SIGNERS:
        assert limited(asked(signer, TOKEN), counted, MACHINE) is None
    assert reason(limited(asked(username=TOKEN, name="n2"), counted, MACHINE)) == "TokenUsedUp"
    assert reason(limited(asked(username=TOKEN, password=OTHER_PASSWORD), counted, MACHINE)) == "TokenUsedUp"


@pytest.mark.parametrize(
    ("signer", "limits", "changes", "expected"),
    [
        pytest.param(K3S_KUBELET_CLIENT, {"node_name": "n*"}, {}, "", id="a name that the token allows"),
        pytest.param(K3S_KUBELET_SERVING, {"node_name": "n*"}, {}, "", id="in a serving certificate"),
        pytest.param(K3S_KUBELET_CLIENT, {"node_name": "w*"}, {}, "NodeNameNotAllowed", id="another name"),
        pytest.param(K3S_KUBELET_SERVING, {"node_name": "w*"}, {}, "NodeNameNotAllowed", id="in a serving certificate, too"),
        *(
            pytest.param(signer, {"require_approval": "true"}, {}, "TokenRequiresApproval", id=f"a person is required: {signer}")
            for signer in NODE_SIGNERS
        ),
        pytest.param(
            K3S_KUBELET_CLIENT, {"require_approval": "true"}, {"automatic": False}, "", id="a person, who is required"
        ),
    ],
)  # fmt: skip
def test_limits_of_a_token(signer: str, limits: dict[str, str], changes: dict[str, Any], expected: str) -> None:
    assert reason(limited(asked(signer, TOKEN, **changes), token(**limits), MACHINE)) == expected


@pytest.mark.parametrize(
    ("username", "name", "secrets", "refusal"),
    [
        pytest.param(AGENT, "n1", [token(max_joins="1", joined_keys=JOIN)], "", id="another user"),
        pytest.param(TOKEN, "n1", [], "", id="a token that was deleted this moment"),
        pytest.param(TOKEN, "n1", [token()], "", id="a token without limits"),
        pytest.param(TOKEN, "n1", [token(max_joins="2", joined_keys=JOIN, node_name="n*")], "", id="a token with room"),
        pytest.param(
            TOKEN, "n1", [token(max_joins="1", joined_keys=JOIN)], "for 1 machine", id="a token that is used up"
        ),
        pytest.param(TOKEN, "w1", [token(node_name="n*")], "only for nodes named", id="a name that it does not allow"),
        pytest.param(TOKEN, "n1", [token(max_joins="x")], "from 1 to", id="a limit that cannot be read"),
    ],
)
def test_whether_a_token_lets_another_machine_join(username: str, name: str, secrets: list[Obj], refusal: str) -> None:
    found = join_refusal(username, name, views(secrets=secrets))
    assert refusal in found
    assert bool(found) is bool(refusal)


def listed(request_: PendingIssue, *machines: Obj, required: bool = True, joined: bool = False) -> CheckResult | None:
    identities = [thing("n1", spec=JOINED)] if joined else []
    inventory = MachineInventory(required, trusts_source_address=True)
    return inventory.check(request_, views(authorizedmachines=machines, nodeidentities=identities))


ENTRY_OF_N1 = thing("m1", spec={"nodeName": "n1", "allowedCIDRs": ["192.0.2.0/24"]})
ENTRY_WITH_KEY = thing("m1", spec={"nodeName": "n1", "keyFingerprint": ENTRY["publicKey"]})
ENTRY_WITH_CODE = thing("m1", spec={"nodeName": "n1", "codeVerifier": "v"})
USED_ENTRY = {**ENTRY_OF_N1, "status": {"usedBy": {"publicKey": OLD["publicKey"], "nodeName": "n1"}}}


def test_the_client_certificate_uses_the_entry_of_an_authorized_machine() -> None:
    for entry in (ENTRY_OF_N1, ENTRY_WITH_KEY):
        finding = listed(asked(), entry)
        assert isinstance(finding, Reservation)
        (update,) = finding.actions
        assert isinstance(update, Update)
        assert update.obj["status"]["usedBy"]["publicKey"] == ENTRY["publicKey"]
    assert reason(listed(asked(), thing("m1", spec={"nodeName": "n2"}))) == "MachineNotListed"


@pytest.mark.parametrize(
    ("request_", "machines", "joined", "expected"),
    [
        pytest.param(asked(K3S_KUBELET_SERVING), [ENTRY_OF_N1], False, "", id="a serving certificate of a listed name"),
        pytest.param(
            asked(K3S_KUBELET_SERVING), [ENTRY_WITH_KEY], False, "MachineNotListed", id="of a name with a key to prove"
        ),
        pytest.param(
            asked(K3S_KUBELET_SERVING),
            [ENTRY_WITH_CODE],
            False,
            "MachineNotListed",
            id="of a name with a code to prove",
        ),
        pytest.param(
            asked(K3S_KUBELET_SERVING),
            [USED_ENTRY],
            False,
            "MachineAlreadyUsed",
            id="of a name that a machine has used",
        ),
        pytest.param(asked(K3S_KUBELET_SERVING), [USED_ENTRY], True, "", id="of that machine, by its password"),
        pytest.param(
            asked(K3S_KUBELET_SERVING, password=OTHER_PASSWORD),
            [USED_ENTRY],
            True,
            "MachineAlreadyUsed",
            id="and of no other",
        ),
        pytest.param(asked(K3S_KUBELET_SERVING), [], False, "MachineNotListed", id="of another name"),
        pytest.param(
            asked(K3S_KUBELET_SERVING, source="10.0.0.1"), [ENTRY_OF_N1], False, "MachineNotListed", id="from elsewhere"
        ),
        pytest.param(asked(K3S_KUBELET_SERVING, NODE), [], False, "", id="of a node itself"),
        pytest.param(asked(K3S_KUBELET_SERVING, automatic=False), [], False, "", id="that a person approved"),
        pytest.param(asked(K3S_KUBE_PROXY_CLIENT, NODE), [], True, "", id="kube-proxy of a machine that joined"),
        pytest.param(asked(username=NODE), [], False, "", id="a node that renews"),
    ],
)
def test_where_entries_are_required(request_: PendingIssue, machines: list[Obj], joined: bool, expected: str) -> None:
    assert reason(listed(request_, *machines, joined=joined)) == expected
    assert listed(request_, *machines, required=False) is None


@pytest.mark.parametrize("signer", NODE_SIGNERS)
def test_a_request_from_before_the_revocation_of_its_node_is_denied(signer: str) -> None:
    later = thing(node_entry("n1"), spec={"node": "n1", "issuedBefore": moment(HOUR)})
    earlier = thing(node_entry("n1"), spec={"node": "n1", "issuedBefore": moment(-HOUR)})
    check = RevokedRequests()
    assert reason(check.check(asked(signer), views(certificaterevocations=[later]))) == "NodeRevoked"
    assert check.check(asked(signer), views(certificaterevocations=[earlier])) is None
    proxy = asked(K3S_KUBE_PROXY_CLIENT, NODE)
    assert reason(check.check(proxy, views(certificaterevocations=[later]))) == "NodeRevoked"
    assert check.check(proxy, views(certificaterevocations=[earlier])) is None
