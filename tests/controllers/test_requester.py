"""The issuance check `requester`: no certificate once the requester's credential was revoked, or the requester deleted."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from mooring.api.certificates.requestrecords import REQUESTER_CERTIFICATE
from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring import tombstones
from mooring.api.view import FixedView, NamespacedName, Views
from mooring.apimachinery.schema import Obj
from mooring.authn.x509 import ClientCrls
from mooring.controllers.actions import Update
from mooring.controllers.certificates.cleaner import RevokedRequests
from mooring.controllers.certificates.issuance import Hold, PendingIssue
from mooring.controllers.certificates.requester import RequesterCheck
from mooring.controllers.certificates.signing.signer import CsrSigner
from mooring.pki.keys import generate_key, public_key_fingerprint
from mooring.pki.x509.clientcertificate import PathCertificate, RecordedCertificate, recorded, recorded_certificate
from mooring.pki.x509.crl import Crl
from mooring.pki.x509.requests import build_request, parse_request
from mooring.pki.x509.signers import K3S_KUBELET_SERVING, NODE_PASSWORD
from mooring.settings.signing import SIGNING_DURATION
from tests.support.plans import HOUR, NOW, moment, plan, thing, views, with_metadata
from tests.support.testca import ThrowawayCA

CA = ThrowawayCA(now=NOW)
KEY = generate_key()
PEM = build_request(KEY, "system:node:n1", ("system:nodes",))
SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
PATH = (
    PathCertificate("1f", "sha256:" + "c" * 64, ("sha256:" + "a" * 64,)),
    PathCertificate("2e", "sha256:" + "d" * 64, ("sha256:" + "c" * 64,)),
)
USED = RecordedCertificate(
    "system:node:n1", "n1", "f" * 64, 0x1F, "sha256:" + "a" * 64, "sha256:" + "c" * 64, NOW - HOUR, PATH
)
COMPANION = replace(USED, common_name="system:kube-proxy")
ROBOT = "system:serviceaccount:default:robot"


def csr(username: str, certificate: str = "", uid: str = "", **status: Any) -> Obj:
    spec = {
        "request": base64.b64encode(PEM).decode(),
        "signerName": SIGNER,
        "usages": ["digital signature", "client auth"],
        "username": username,
    }
    annotations = {REQUESTER_CERTIFICATE: certificate} if certificate else {}
    return thing(
        "r",
        spec={**spec, **({"uid": uid} if uid else {})},
        status=status,
        metadata={"creationTimestamp": moment(0 * HOUR), "annotations": annotations},
    )


def pending(obj: Obj) -> PendingIssue:
    return PendingIssue(csr=obj, request=parse_request(PEM), now=NOW + HOUR, automatic=False)


def node_revoked(after: timedelta | None) -> Obj:
    return thing("node-n1", spec={"nodeName": "n1"} | ({} if after is None else {"issuedBefore": moment(after)}))


def account(uid: str = "u1", **metadata: Any) -> Obj:
    return thing("robot", "default", metadata={"uid": uid, **metadata})


ENDED = {"nodeidentities": [thing("n1", spec={"nodeUID": "old"})]}
REVOKED, DELETED, UNKNOWN = ("RequesterRevoked", True), ("RequesterDeleted", True), ("RequesterUnknown", False)


@dataclass(frozen=True)
class Case:
    """A request, the stored objects, and the reason of the hold with whether it denies."""

    request: Obj
    outcome: tuple[str, bool] | None
    stored: Mapping[str, Sequence[Obj]] = field(default_factory=dict)
    unreadable: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    trusts_record: bool = True


def revoked(*names: str) -> Mapping[str, Sequence[Obj]]:
    return {"certificaterevocations": [thing(name, spec={}) for name in names]}


def changed_hands(after: timedelta, **spec: Any) -> Mapping[str, Sequence[Obj]]:
    """Return a NodeIdentity whose name changed hands."""
    return {"nodeidentities": [thing("n1", spec={"changedAt": moment(after), **spec})]}


NODE, USER = csr("system:node:n1", recorded(USED)), csr("jane", recorded(replace(USED, common_name="jane")))
CASES: dict[str, Case] = {
    "nothing has ended": Case(NODE, None),
    "another serial number is revoked": Case(NODE, None, revoked("serial-2f")),
    "the serial number of the requester's certificate is revoked": Case(USER, REVOKED, revoked("serial-1f")),
    "its serial number of its issuer": Case(USER, REVOKED, revoked("serial-1f-" + "c" * 64)),
    "its serial number of another issuer": Case(USER, None, revoked("serial-1f-" + "d" * 64)),
    "its key is revoked, and the request has another": Case(USER, REVOKED, revoked("key-" + "a" * 64)),
    "its key is revoked, by an entry that cannot be read": Case(
        USER, REVOKED, unreadable={"certificaterevocations": ("", "key-" + "a" * 64)}
    ),
    "an administrator impersonates, and its own certificate is revoked": Case(
        csr("someone", recorded(replace(USED, common_name="jane"))), REVOKED, revoked("serial-1f")
    ),
    "a deleted machine impersonates": Case(csr("someone", recorded(USED)), DELETED, ENDED),
    "the record cannot be read": Case(csr("jane", "{"), UNKNOWN),
    "another API server does not guard the record": Case(USER, None, revoked("serial-1f"), trusts_record=False),
    "the node is revoked, with a certificate of before": Case(
        csr("system:node:n1"), REVOKED, {"certificaterevocations": [node_revoked(HOUR)]}
    ),
    "the node is revoked by an entry that another API server stored, after the request": Case(
        csr("system:node:n1"),
        REVOKED,
        {"certificaterevocations": [with_metadata(node_revoked(None), creationTimestamp=moment(HOUR))]},
    ),
    "the node is revoked by an entry that another API server stored, before the request": Case(
        csr("system:node:n1"),
        None,
        {"certificaterevocations": [with_metadata(node_revoked(None), creationTimestamp=moment(-HOUR))]},
    ),
    "the node is revoked for ever": Case(
        csr("system:node:n1"), REVOKED, {"certificaterevocations": [node_revoked(None)]}
    ),
    "the node was revoked before it asked": Case(
        csr("system:node:n1"), None, {"certificaterevocations": [node_revoked(-HOUR)]}
    ),
    "whether the node is revoked cannot be read": Case(
        csr("system:node:n1"), UNKNOWN, unreadable={"certificaterevocations": ("", "node-n1")}
    ),
    "whether its certificate is revoked cannot be read": Case(
        NODE, UNKNOWN, unreadable={"certificaterevocations": ("", "node-n1")}
    ),
    "the Node is deleted": Case(csr("system:node:n1"), DELETED, ENDED),
    "another machine has the name since": Case(csr("system:node:n1"), DELETED, changed_hands(HOUR)),
    "another machine has the name of its certificate since": Case(
        csr("someone", recorded(USED)), DELETED, changed_hands(HOUR)
    ),
    "the name changed hands before the request": Case(NODE, None, changed_hands(0 * HOUR)),
    "the name changed hands in the second of the request, and its key has lost it": Case(
        NODE, DELETED, changed_hands(0 * HOUR, keys=[{"publicKey": "sha256:" + "b" * 64}])
    ),
    "the name changed hands in the second of the request, and its key has it": Case(
        NODE, None, changed_hands(0 * HOUR, keys=[{"publicKey": USED.public_key}])
    ),
    "the name changed hands in that second, and the machine may create its Node again": Case(
        NODE, None, changed_hands(0 * HOUR, reregisters=True, keys=[{"publicKey": "sha256:" + "b" * 64}])
    ),
    "the name changed hands in that second, and with it a certificate of a shared user": Case(
        csr("system:kube-proxy", recorded(COMPANION)), DELETED, changed_hands(0 * HOUR)
    ),
    "the name changed hands in that second, and the certificate of a shared user is of the new machine": Case(
        csr("system:kube-proxy", recorded(COMPANION)),
        None,
        changed_hands(0 * HOUR, companions=[{"publicKey": USED.public_key}]),
    ),
    "the machine may create its Node again": Case(NODE, None, changed_hands(HOUR, reregisters=True)),
    "the same machine has proved its node password since": Case(
        {**NODE, "spec": {**NODE["spec"], "signerName": K3S_KUBELET_SERVING, "extra": {NODE_PASSWORD: ["p1"]}}},
        None,
        changed_hands(HOUR, nodePasswordUID="p1"),
    ),
    "another node password was proved since": Case(
        {**NODE, "spec": {**NODE["spec"], "signerName": K3S_KUBELET_SERVING, "extra": {NODE_PASSWORD: ["p2"]}}},
        DELETED,
        changed_hands(HOUR, nodePasswordUID="p1"),
    ),
    "the Node of a recovering machine is deleted": Case(csr("system:recovering-node:n1"), DELETED, ENDED),
    "the Node cannot be read": Case(csr("system:node:n1"), UNKNOWN, unreadable={"nodes": ("", "n1")}),
    "the NodeIdentity cannot be read": Case(csr("system:node:n1"), UNKNOWN, unreadable={"nodeidentities": ("", "n1")}),
    "the ServiceAccount is there": Case(csr(ROBOT, uid="u1"), None, {"serviceaccounts": [account()]}),
    "the ServiceAccount is there, and the request names no uid": Case(
        csr(ROBOT), None, {"serviceaccounts": [account()]}
    ),
    "the ServiceAccount is deleted": Case(csr(ROBOT, uid="u1"), DELETED),
    "the ServiceAccount is being deleted": Case(
        csr(ROBOT, uid="u1"), DELETED, {"serviceaccounts": [account(deletionTimestamp=moment(0 * HOUR))]}
    ),
    "the ServiceAccount is another one now": Case(csr(ROBOT, uid="u0"), DELETED, {"serviceaccounts": [account()]}),
    "the ServiceAccount cannot be read": Case(
        csr(ROBOT, uid="u1"), UNKNOWN, unreadable={"serviceaccounts": ("default", "robot")}
    ),
    "a user whom no object names": Case(csr("jane"), None),
    "a bootstrap token, whose end is judged elsewhere": Case(csr("system:bootstrap:abcdef"), None),
}


def seen(case: Case) -> Views:
    return {plural: FixedView(case.stored.get(plural, ()), unreadable=_problems(case, plural)) for plural in BY_PLURAL}


def _problems(case: Case, plural: str) -> dict[NamespacedName, str]:
    return {case.unreadable[plural]: "no key decrypts it"} if plural in case.unreadable else {}


@pytest.mark.parametrize("name", CASES)
def test_a_request_is_worth_what_its_requester_is(name: str) -> None:
    case = CASES[name]
    found = RequesterCheck(case.trusts_record).check(pending(case.request), seen(case))
    assert (found and (found.reason, found.denies)) == case.outcome


CRL = Crl("CN=other", "sha256:" + "c" * 64, NOW - HOUR, NOW + 2 * HOUR, frozenset({0x1F}))


@pytest.mark.parametrize(
    ("found", "required", "outcome"),
    [
        pytest.param([CRL], False, ("RequesterRevoked", True), id="on it"),
        pytest.param([replace(CRL, serial_numbers=frozenset())], False, None, id="not on it"),
        pytest.param([], True, UNKNOWN, id="missing"),
    ],
)
def test_a_requester_on_a_crl_gets_nothing_and_waits_for_one_that_is_missing(
    found: list[Crl], required: bool, outcome: tuple[str, bool] | None
) -> None:
    crls = ClientCrls(required=required)
    crls.replace({one.issuer_key: one for one in found})
    case = Case(csr("jane", recorded(replace(USED, common_name="jane", node_name=""))), outcome)
    hold = RequesterCheck(True, crls).check(pending(case.request), seen(case))
    assert (hold and (hold.reason, hold.denies)) == outcome


def test_a_request_that_a_person_approved_is_not_signed() -> None:
    approved = {"type": "Approved", "status": "True", "reason": "ByHand", "message": ""}
    signer = CsrSigner(CA.cluster_ca.for_signer, checks=(RequesterCheck(True),), signing_duration=SIGNING_DURATION)
    obj = csr("jane", recorded(replace(USED, common_name="jane")), conditions=[approved])
    (action,) = plan(signer, ("", "r"), views(certificatesigningrequests=[obj], **revoked("serial-1f")))
    assert isinstance(action, Update)
    assert [one["reason"] for one in action.obj["status"]["conditions"]] == ["ByHand", "RequesterRevoked"]


def test_a_certificate_is_judged_again_when_it_is_published() -> None:
    approved = {"type": "Approved", "status": "True", "reason": "ByHand", "message": ""}
    signer = CsrSigner(CA.cluster_ca.for_signer, checks=(RequesterCheck(True),), signing_duration=SIGNING_DURATION)
    obj = csr("jane", recorded(replace(USED, common_name="jane")), conditions=[approved])
    _, publication = plan(signer, ("", "r"), views(certificatesigningrequests=[obj]))
    assert isinstance(publication, Update)
    assert publication.precondition is not None
    assert publication.precondition(views(certificatesigningrequests=[obj]), NOW)
    assert not publication.precondition(views(certificatesigningrequests=[obj], **revoked("serial-1f")), NOW)
    waiting = thing(tombstones.NAME, tombstones.NAMESPACE, data={"node.n1": tombstones.entry("n1", {"uid": "u1"})})
    assert not publication.precondition(views(certificatesigningrequests=[obj], configmaps=[waiting]), NOW)


def test_entries_of_requests_that_cannot_be_read_are_present() -> None:
    key = f"key-{public_key_fingerprint(KEY)}"
    outcomes = []
    for name in (key, "node-n1"):
        case = Case(csr("jane"), None, unreadable={"certificaterevocations": ("", name)})
        found = RevokedRequests().check(pending(case.request), seen(case))
        assert isinstance(found, Hold)
        outcomes.append((found.reason, found.denies))
    assert outcomes == [("KeyRevoked", True), ("NodeRevoked", False)]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "3", '{"commonName":"x"}', recorded(USED).replace("1f", "zz")])
def test_a_record_that_cannot_be_read_is_none(text: str) -> None:
    assert recorded_certificate(text) is None


def test_a_record_keeps_what_the_checks_read() -> None:
    assert recorded_certificate(recorded(USED)) == USED
    assert recorded_certificate(recorded(replace(USED, common_name="jane"))) == replace(USED, common_name="")
