"""The approver, signer and cleaner of CertificateSigningRequests (docs/protocol/certificate-signing-requests.md)."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from mooring.api.mooring import tombstones
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import (
    Action,
    CheckAccess,
    Controller,
    Delete,
    InThread,
    RecordIssuance,
    Requeue,
    Retry,
    Update,
)
from mooring.controllers.certificates.approval import CsrApprover
from mooring.controllers.certificates.cleaner import CsrCleaner
from mooring.controllers.certificates.signing.signer import CsrSigner
from mooring.pki.errors import DeviceError
from mooring.pki.keys import DeviceKey, generate_key
from mooring.pki.pem import encode
from mooring.pki.x509.authority import Authority, request_serial_number
from mooring.pki.x509.bundles import certificates
from mooring.pki.x509.names import common_name, organizations
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT, KUBE_APISERVER_CLIENT_KUBELET, KUBELET_SERVING
from mooring.settings.signing import SIGNING_DURATION
from tests.support.plans import HOUR, NOW, moment, plan, thing, views, with_metadata
from tests.support.testca import ThrowawayCA, by_library, request_with_bad_signature

CA = ThrowawayCA(now=NOW)
KEY = generate_key()
APPROVER, CLEANER = CsrApprover(), CsrCleaner()
SIGNER = CsrSigner(CA.cluster_ca.for_signer, signing_duration=SIGNING_DURATION)
CONTROLLERS = (APPROVER, SIGNER, CLEANER)

NODE_PEM = build_request(KEY, "system:node:n1", ("system:nodes",))
SERVING_PEM = build_request(KEY, "system:node:n1", ("system:nodes",), ("n1",), (ip_address("192.0.2.1"),))
CLIENT_USAGES = ("digital signature", "client auth")
SERVER_USAGES = ("digital signature", "server auth")
APPROVED, DENIED, FAILED = "Approved", "Denied", "Failed"
CERTIFICATE = base64.b64encode(CA.client("x").certificate_pem).decode()


def csr(
    *conditions: str | Obj,
    pem: bytes = NODE_PEM,
    signer: str = KUBE_APISERVER_CLIENT_KUBELET,
    usages: Sequence[str] = CLIENT_USAGES,
    certificate: str = "",
    created: str | None = None,
    **spec: Any,
) -> Obj:
    """Return a request; a condition is given by its type, or as an object."""
    asked = {
        "request": base64.b64encode(pem).decode(),
        "signerName": signer,
        "usages": list(usages),
        "username": "system:bootstrap:abcdef",
        "groups": ["system:bootstrappers", "system:authenticated"],
        **spec,
    }
    status: Obj = {"conditions": [condition(given) for given in conditions]} if conditions else {}
    if certificate:
        status["certificate"] = certificate
    return thing("join", spec=asked, status=status, metadata={"creationTimestamp": created or moment(0 * HOUR)})


def condition(given: str | Obj) -> Obj:
    return {"type": given, "status": "True", "lastUpdateTime": moment(0 * HOUR)} if isinstance(given, str) else given


def planned(controller: Controller, obj: Obj | None, now: datetime = NOW) -> list[Action]:
    return plan(controller, ("", "join"), views(certificatesigningrequests=[obj] if obj else []), now)


def enqueues(controller: Controller, obj: Obj, deleted: bool = False) -> bool:
    return list(controller.keys("certificatesigningrequests", obj, deleted, views())) == [("", "join")]


# -- keys of events ------------------------------------------------------------------------------------------------------

STAGES = {
    "a new request": csr(),
    "an approved one": csr(APPROVED),
    "a denied one": csr(DENIED),
    "an approved and denied one": csr(APPROVED, DENIED),
    "an approved and failed one": csr(APPROVED, FAILED),
    "an issued one": csr(APPROVED, certificate=CERTIFICATE),
    "one with a certificate and no condition": csr(certificate=CERTIFICATE),
    "one with a condition of its own": csr("Reviewed"),
    "one for another signer": csr(signer="example.com/own"),
    "an approved one for another signer": csr(APPROVED, signer="example.com/own"),
    "one that only a person may approve": csr(signer=KUBE_APISERVER_CLIENT),
    "one without spec": {**csr(APPROVED), "spec": None},
}


@pytest.mark.parametrize(
    ("controller", "concerned"),
    [
        pytest.param(APPROVER, {"a new request", "one with a condition of its own"}, id="the approver"),
        pytest.param(SIGNER, {"an approved one", "one that only a person may approve"}, id="the signer"),
        pytest.param(CLEANER, set(STAGES), id="the cleaner"),
    ],
)
def test_an_event_enqueues_only_requests_in_the_stage_of_the_controller(
    controller: Controller, concerned: set[str]
) -> None:
    assert {name for name, obj in STAGES.items() if enqueues(controller, obj)} == concerned
    assert not any(enqueues(controller, obj, deleted=True) for obj in STAGES.values())


@pytest.mark.parametrize("controller", [APPROVER, SIGNER])
@pytest.mark.parametrize("name", STAGES)
def test_a_plan_leaves_requests_of_other_stages_alone(controller: Controller, name: str) -> None:
    assert bool(planned(controller, STAGES[name])) == enqueues(controller, STAGES[name])


@pytest.mark.parametrize("controller", CONTROLLERS, ids=lambda controller: controller.name)
def test_a_deleted_request_needs_no_action(controller: Controller) -> None:
    assert planned(controller, None) == []


def test_failed_counts_only_when_it_is_true() -> None:
    assert enqueues(SIGNER, csr(APPROVED, {"type": FAILED, "status": "False"}))


# -- approving -----------------------------------------------------------------------------------------------------------


def access_check(actions: Sequence[Action]) -> CheckAccess:
    (ask,) = actions
    assert isinstance(ask, CheckAccess)
    return ask


def subresource(actions: Sequence[Action]) -> str:
    return str(access_check(actions).review["spec"]["resourceAttributes"]["subresource"])


def test_the_access_review_carries_the_whole_identity_of_the_requester() -> None:
    obj = csr(uid="u1", extra={"authentication.kubernetes.io/credential-id": ["X509SHA256=1"]})
    assert access_check(planned(APPROVER, obj)).review == {
        "kind": "SubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "spec": {
            "user": "system:bootstrap:abcdef",
            "uid": "u1",
            "groups": ["system:bootstrappers", "system:authenticated"],
            "extra": {"authentication.kubernetes.io/credential-id": ["X509SHA256=1"]},
            "resourceAttributes": {
                "group": "certificates.k8s.io",
                "resource": "certificatesigningrequests",
                "subresource": "nodeclient",
                "verb": "create",
                "version": "*",
            },
        },
    }


def test_an_allowed_request_is_approved_with_the_resource_version_of_the_plan() -> None:
    obj = csr("Reviewed")
    (update,) = access_check(planned(APPROVER, obj)).then(True)
    assert isinstance(update, Update)
    assert (update.plural, update.subresource) == ("certificatesigningrequests", "approval")
    assert update.obj["metadata"] == obj["metadata"]
    first, approved = update.obj["status"]["conditions"]
    assert first == obj["status"]["conditions"][0]
    assert (approved["type"], approved["status"], approved["reason"]) == ("Approved", "True", "AutoApproved")
    assert "nodeclient" in approved["message"]
    assert obj == csr("Reviewed"), "the plan does not change objects of the views"


def test_selfnodeclient_is_checked_before_nodeclient() -> None:
    first = planned(APPROVER, csr(username="system:node:n1"))
    assert subresource(first) == "selfnodeclient"
    second = list(access_check(first).then(False))
    assert subresource(second) == "nodeclient"
    _, retry = access_check(second).then(False)
    assert isinstance(retry, Retry)


def test_a_recognised_request_that_is_not_allowed_says_so_once_and_is_retried() -> None:
    update, retry = access_check(planned(APPROVER, csr())).then(False)
    assert isinstance(retry, Retry)
    assert isinstance(update, Update)
    (held,) = update.obj["status"]["conditions"]
    assert (update.subresource, held["type"], held["reason"]) == ("approval", "NeedsApproval", "NotGranted")
    assert "certificatesigningrequests:nodeclient" in held["message"]
    (again,) = access_check(planned(APPROVER, update.obj)).then(False)
    assert isinstance(again, Retry)
    (approved,) = access_check(planned(APPROVER, update.obj)).then(True)
    assert isinstance(approved, Update)
    assert [one["type"] for one in approved.obj["status"]["conditions"]] == ["Approved"]


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(csr(pem=build_request(KEY, "n1", ("system:nodes",))), id="a common name of no node"),
        pytest.param(csr(pem=build_request(KEY, "system:node:n1", ("system:masters",))), id="another organization"),
        pytest.param(csr(pem=SERVING_PEM), id="alternative names"),
        pytest.param(csr(usages=SERVER_USAGES), id="usages of a server"),
        pytest.param(csr(usages=()), id="no usages"),
        pytest.param(csr(request="abcde"), id="a request that is not base64"),
        pytest.param(csr(pem=b"junk"), id="a request that is not PEM"),
    ],
)
def test_a_request_for_another_certificate_is_left_to_administrators(obj: Obj) -> None:
    assert planned(APPROVER, obj) == []


# -- signing -------------------------------------------------------------------------------------------------------------


def written(actions: Sequence[Action]) -> Obj:
    """Return the status of the one planned update."""
    *recorded, update = actions
    assert all(isinstance(action, RecordIssuance) for action in recorded)
    assert isinstance(update, Update)
    assert (update.plural, update.subresource) == ("certificatesigningrequests", "status")
    assert update.obj["metadata"]["resourceVersion"] == "7"
    status: Obj = update.obj["status"]
    return status


def test_an_approved_request_gets_its_leaf_alone() -> None:
    obj = csr(APPROVED)
    status = written(planned(SIGNER, obj))
    (leaf,) = certificates(base64.b64decode(status["certificate"]))
    assert (common_name(leaf.subject), organizations(leaf.subject)) == ("system:node:n1", ("system:nodes",))
    assert leaf.serial_number == request_serial_number(obj["metadata"]["uid"]), "it follows from the request"
    by_library(leaf).verify_directly_issued_by(by_library(CA.certificate))
    assert status["conditions"] == obj["status"]["conditions"]
    assert obj == csr(APPROVED), "the plan does not change objects of the views"


@pytest.mark.parametrize(
    ("signer_name", "usages", "pem"),
    [
        pytest.param(KUBE_APISERVER_CLIENT_KUBELET, CLIENT_USAGES, NODE_PEM, id="of a node"),
        pytest.param("kubernetes.io/legacy-unknown", SERVER_USAGES, SERVING_PEM, id="that a person approved"),
        pytest.param("example.com/web", SERVER_USAGES, SERVING_PEM, id="of a signer of the operator's own"),
    ],
)
def test_a_certificate_is_recorded_before_it_is_published(signer_name: str, usages: Sequence[str], pem: bytes) -> None:
    signer = CsrSigner({signer_name: CA.authority}.get, signing_duration=SIGNING_DURATION)
    record, update = planned(signer, csr(APPROVED, pem=pem, signer=signer_name, usages=usages))
    assert isinstance(record, RecordIssuance)
    assert isinstance(update, Update)
    (leaf,) = certificates(base64.b64decode(update.obj["status"]["certificate"]))
    assert record.entry["serialNumber"] == f"{leaf.serial_number:x}"
    assert record.entry["token"] == "abcdef"
    assert update.is_routine
    assert update.announcement.startswith(f"the certificate {leaf.serial_number:x} of ")
    assert update.announcement.endswith(f"until {record.entry['notAfter']}; its request is {record.entry['request']}")


def leaf_end(signer: CsrSigner, **spec: Any) -> timedelta:
    status = written(planned(signer, csr(APPROVED, **spec)))
    return certificates(base64.b64decode(status["certificate"]))[0].not_valid_after_utc - NOW


@pytest.mark.parametrize(
    ("signer", "spec", "end"),
    [
        pytest.param(SIGNER, {}, timedelta(hours=8760, minutes=-5), id="a year by default, less five minutes"),
        pytest.param(SIGNER, {"expirationSeconds": 3600}, HOUR, id="the time that was asked for"),
        pytest.param(
            CsrSigner(CA.cluster_ca.for_signer, 2 * HOUR), {}, 2 * HOUR, id="the duration that was configured"
        ),
        pytest.param(
            CsrSigner(CA.cluster_ca.for_signer, 2 * HOUR),
            {"expirationSeconds": 7 * 3600},
            2 * HOUR,
            id="never more than configured",
        ),
    ],
)
def test_validity_of_a_certificate(signer: CsrSigner, spec: Obj, end: timedelta) -> None:
    assert leaf_end(signer, **spec) == end


def test_a_serving_certificate_keeps_its_names() -> None:
    assert written(planned(SIGNER, csr(APPROVED, pem=SERVING_PEM, signer=KUBELET_SERVING, usages=SERVER_USAGES)))[
        "certificate"
    ]


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        pytest.param(
            csr(APPROVED, pem=SERVING_PEM),
            "DNS subjectAltNames are not allowed; IP subjectAltNames are not allowed",
            id="a broken rule of the signer, each one named",
        ),
        pytest.param(
            csr(APPROVED, usages=SERVER_USAGES),
            "usages did not match [client auth digital signature key encipherment]",
            id="usages the signer does not give",
        ),
        pytest.param(
            csr(APPROVED, signer="kubernetes.io/legacy-unknown", usages=("encipher only",)),
            '"encipher only" and "decipher only" have a meaning only together with "key agreement"',
            id="usages no certificate can state",
        ),
        pytest.param(csr(APPROVED, request="abcde"), "spec.request is not base64", id="a request that is not base64"),
        pytest.param(
            csr(APPROVED, pem=b"junk"), "PEM block type must be CERTIFICATE REQUEST", id="a request that is not PEM"
        ),
        pytest.param(
            csr(APPROVED, pem=request_with_bad_signature("system:node:n1")),
            "the certificate request's signature does not verify with the key it carries",
            id="a request that another key signed",
        ),
    ],
)
def test_a_request_that_cannot_be_signed_is_marked_failed(obj: Obj, message: str) -> None:
    status = written(planned(SIGNER, obj))
    assert "certificate" not in status
    assert status["conditions"][-1] == {
        "type": "Failed",
        "status": "True",
        "reason": "SignerValidationFailure",
        "message": message,
    }


def test_a_failure_replaces_a_failed_condition_that_was_not_true() -> None:
    status = written(planned(SIGNER, csr(APPROVED, {"type": FAILED, "status": "False"}, pem=b"junk")))
    assert [(one["type"], one["status"]) for one in status["conditions"]] == [(APPROVED, "True"), (FAILED, "True")]


def test_an_expired_ca_signs_nothing_and_the_request_waits() -> None:
    (retry,) = planned(SIGNER, csr(APPROVED), CA.authority.not_after)
    assert isinstance(retry, Retry)
    assert "the CA expired at 2035-12-31T03:04:05Z" in retry.reason


def test_a_signer_of_ones_own_signs_what_a_person_approved() -> None:
    own = "example.com/web"
    signer = CsrSigner({own: CA.authority}.get, signing_duration=SIGNING_DURATION)
    status = written(planned(signer, csr(APPROVED, pem=SERVING_PEM, signer=own, usages=SERVER_USAGES)))
    (leaf,) = certificates(base64.b64decode(status["certificate"]))
    by_library(leaf).verify_directly_issued_by(by_library(CA.certificate))
    assert planned(signer, csr(APPROVED)) == [], "other signers are left to other programs"


class SlowKey(DeviceKey, ec.EllipticCurvePrivateKey):
    """A key in a device: it signs with another key, or fails."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, error: Exception | None = None) -> None:
        self._key, self._error = key, error

    def sign(self, data: Any, signature_algorithm: ec.EllipticCurveSignatureAlgorithm) -> bytes:
        if self._error is not None:
            raise self._error
        return self._key.sign(data, signature_algorithm)

    def public_key(self) -> ec.EllipticCurvePublicKey:
        return self._key.public_key()

    @property
    def curve(self) -> ec.EllipticCurve:
        return self._key.curve

    @property
    def key_size(self) -> int:
        return self._key.key_size

    def exchange(self, *_: Any) -> bytes:
        raise NotImplementedError

    private_numbers = private_bytes = __copy__ = __deepcopy__ = exchange  # type: ignore[assignment]  # never called


def device(error: Exception | None = None) -> CsrSigner:
    assert isinstance(CA.key, ec.EllipticCurvePrivateKey)
    authority = Authority(CA.certificate, SlowKey(CA.key, error))
    return CsrSigner(lambda signer_name: authority, signing_duration=SIGNING_DURATION)


def test_a_device_signs_in_a_thread() -> None:
    (action,) = planned(device(), csr(APPROVED))
    assert isinstance(action, InThread)
    (leaf,) = certificates(base64.b64decode(written(action.work())["certificate"]))
    by_library(leaf).verify_directly_issued_by(by_library(CA.certificate))


def test_a_request_with_thousands_of_names_is_signed_in_a_thread() -> None:
    groups = tuple(f"group-{number:04}" for number in range(1000))
    long = build_request(KEY, "jane", groups)
    (action,) = planned(SIGNER, csr(APPROVED, pem=long, signer=KUBE_APISERVER_CLIENT))
    assert isinstance(action, InThread)
    (leaf,) = certificates(base64.b64decode(written(action.work())["certificate"]))
    assert set(organizations(leaf.subject)) == set(groups)


def test_a_device_that_fails_leaves_the_request_as_it_is() -> None:
    (action,) = planned(device(DeviceError("the token is gone")), csr(APPROVED))
    assert isinstance(action, InThread)
    with pytest.raises(DeviceError, match="the token is gone"):
        action.work()


def test_a_certificate_that_the_authority_refuses_marks_the_request_failed() -> None:
    (action,) = planned(device(ValueError("too long")), csr(APPROVED))
    assert isinstance(action, InThread)
    (failed,) = [one for one in written(action.work())["conditions"] if one["type"] == FAILED]
    assert failed["message"] == "the certificate cannot be encoded: too long"


# -- cleaning ------------------------------------------------------------------------------------------------------------

DELETE = Delete("certificatesigningrequests", "", "join", "uid-of-join", "7")
NO_CERTIFICATE = base64.b64encode(encode("CERTIFICATE", b"a")).decode()
SHORT_LIVED = base64.b64encode(CA.client("x", lifetime=timedelta(minutes=20)).certificate_pem).decode()


@pytest.mark.parametrize(
    ("obj", "due"),
    [
        pytest.param(csr(), 24 * HOUR, id="undecided: a day after it was made"),
        pytest.param(csr(APPROVED), 24 * HOUR, id="approved and never issued: a day after the approval"),
        pytest.param(csr(APPROVED, certificate=CERTIFICATE), HOUR, id="issued: an hour after the approval"),
        pytest.param(csr(DENIED), HOUR, id="denied: after an hour"),
        pytest.param(csr(APPROVED, FAILED), HOUR, id="failed: after an hour"),
        pytest.param(
            csr(APPROVED, certificate=SHORT_LIVED), timedelta(minutes=20), id="issued: when the certificate has expired"
        ),
        pytest.param(
            csr(APPROVED, certificate=base64.b64encode(b"junk").decode()), HOUR, id="issued, but nobody can read it"
        ),
        pytest.param(
            csr(APPROVED, certificate=NO_CERTIFICATE), HOUR, id="issued, but the PEM block holds no certificate"
        ),
        pytest.param(csr(APPROVED, certificate="!!!!!"), HOUR, id="issued, but not even base64"),
        pytest.param(csr(APPROVED, certificate="é"), HOUR, id="issued, but not even ASCII"),
    ],
)
def test_a_request_is_deleted_when_it_falls_due_and_planned_for_then(obj: Obj, due: timedelta) -> None:
    assert planned(CLEANER, obj) == [Requeue(NOW + due)]
    assert planned(CLEANER, obj, NOW + due) == [DELETE]


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(csr("Reviewed"), id="one with a condition of its own only"),
        pytest.param(csr({"type": DENIED, "status": "True"}), id="a condition that says not when"),
        pytest.param(csr({"type": DENIED, "lastUpdateTime": "soon"}), id="a condition whose time cannot be read"),
        pytest.param(csr(created="9999-12-31T23:59:59Z"), id="one made at the end of time"),
        pytest.param(with_metadata(csr(DENIED), deletionTimestamp=moment(0 * HOUR)), id="one that is being deleted"),
    ],
)
def test_a_request_that_never_falls_due_stays(obj: Obj) -> None:
    assert planned(CLEANER, obj, NOW + 1000 * HOUR) == []


@pytest.mark.parametrize(
    ("obj", "due"),
    [
        pytest.param(csr(username="system:anonymous"), HOUR, id="one that waits"),
        pytest.param(csr("NeedsApproval", username="system:anonymous"), HOUR, id="one that waits, and says why"),
        pytest.param(csr(DENIED, username="system:anonymous"), 24 * HOUR, id="one that was denied"),
        pytest.param(csr(FAILED, username="system:anonymous"), HOUR, id="one that failed"),
    ],
)
def test_a_request_without_a_credential_waits_for_an_hour_and_stays_denied_for_a_day(obj: Obj, due: timedelta) -> None:
    assert planned(CLEANER, obj) == [Requeue(NOW + due)]
    assert planned(CLEANER, obj, NOW + due) == [DELETE]


def test_a_request_without_a_credential_says_how_a_person_lets_the_machine_in() -> None:
    actions = planned(APPROVER, csr(username="system:anonymous"))
    while isinstance(actions[0], CheckAccess):
        actions = list(actions[0].then(False))
    update = actions[0]
    assert isinstance(update, Update)
    (held,) = update.obj["status"]["conditions"]
    assert (held["type"], held["reason"]) == ("NeedsApproval", "JoinRequested")
    assert "mooring machine approve n1" in held["message"]


def test_nothing_is_signed_while_an_end_waits_to_be_settled() -> None:
    waiting = {"metadata": {"name": tombstones.NAME, "namespace": tombstones.NAMESPACE}, "data": {"node.n1": "{}"}}
    seen = views(certificatesigningrequests=[csr(APPROVED)], configmaps=[waiting])
    name = csr(APPROVED)["metadata"]["name"]
    assert plan(SIGNER, ("", name), seen) == [Requeue(NOW + tombstones.UNSETTLED_FOR)]
