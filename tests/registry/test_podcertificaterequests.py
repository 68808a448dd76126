"""Test what admission allows for PodCertificateRequests: those of a node, and the right to sign.

Source: docs/protocol/pod-certificate-requests.md#rights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.api.view import FixedView
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes, Decision, Ruling
from mooring.clock import rfc3339
from mooring.errors import ApiError, ConflictError, ForbiddenError, InvalidError
from mooring.identity import NODE_PREFIX, NODES, UserInfo
from mooring.registry.admission.request import AdmissionRequest
from mooring.registry.admission.table import ADMISSION, ALWAYS_ENABLED, JUDGES_OF_RIGHTS
from tests.support.manualclock import EPOCH

NODE = UserInfo(NODE_PREFIX + "n1", groups=(NODES,))
SIGNER = "example.com/pods"
SPEC = {
    "signerName": SIGNER,
    "podName": "p",
    "podUID": "pod-uid",
    "serviceAccountName": "robot",
    "serviceAccountUID": "robot-uid",
    "nodeName": "n1",
    "nodeUID": "node-uid",
}
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod-uid"}
"""Owner of a request, as a kubelet writes it."""
NODE_OBJECT = {"metadata": {"name": "n1", "uid": "node-uid"}}
ACCOUNT = {"metadata": {"name": "robot", "namespace": "ns", "uid": "robot-uid"}}


def volume(signer: str) -> Obj:
    return {"name": "v", "projected": {"sources": [{"podCertificate": {"signerName": signer, "keyType": "ED25519"}}]}}


def pod(metadata: Obj | None = None, phase: str = "Running", **spec: Any) -> Obj:
    return {
        "metadata": {"name": "p", "namespace": "ns", "uid": "pod-uid", **(metadata or {})},
        "spec": {"nodeName": "n1", "serviceAccountName": "robot", "volumes": [volume(SIGNER)], **spec},
        "status": {"phase": phase},
    }


def views(**present: list[Obj] | FixedView) -> dict[str, FixedView]:
    objects: dict[str, list[Obj] | FixedView] = {
        "nodes": [NODE_OBJECT],
        "pods": [pod()],
        "serviceaccounts": [ACCOUNT],
        **present,
    }
    return {plural: one if isinstance(one, FixedView) else FixedView(one) for plural, one in objects.items()}


def wanted(metadata: Obj | None = None, **spec: Any) -> Obj:
    """Return a request of n1 for the Pod. `spec` replaces members of its spec."""
    return {"metadata": {"name": "req-1", "namespace": "ns", **(metadata or {})}, "spec": {**SPEC, **spec}}


def granting(*granted: Attributes) -> Callable[[Attributes], Decision]:
    def authorize(asked: Attributes) -> Decision:
        return Decision(Ruling.ALLOW if asked in granted else Ruling.NO_OPINION)

    return authorize


def write(new: Obj | None, old: Obj | None = None, user: UserInfo = NODE, **more: Any) -> AdmissionRequest:
    given: dict[str, Any] = {"views": views(), "authorize": granting(), **more}
    return AdmissionRequest(
        operation="DELETE" if new is None else "CREATE" if old is None else "UPDATE",
        kind=BY_PLURAL["podcertificaterequests"],
        namespace="ns",
        name="req-1",
        new=new,
        old=old,
        change=Change(user, EPOCH),
        **given,
    )


def admit_node(request: AdmissionRequest, error: type[ApiError], why: str) -> None:
    """Let NodeRestriction judge a write of a node, which it refuses with these words, or allows without."""
    plugin = ADMISSION["NodeRestriction"]()
    if not why:
        plugin.admit(request)
        return
    with pytest.raises(error) as caught:
        plugin.admit(request)
    head = 'podcertificaterequests.certificates.k8s.io "req-1" is forbidden: ' if error is ForbiddenError else ""
    assert caught.value.message == head + why


OF_POD = 'PodCertificateRequest for pod "ns/p" '
OF_ACCOUNT = 'while retrieving service account "ns/robot" named in the PodCertificateRequest: serviceaccount "robot" '
HAS_ENDED = 'pod "ns/p" has ended'
UNREADABLE = FixedView(unreadable={("ns", "p"): "no key", ("ns", "robot"): "no key", ("", "n1"): "no key"})


@pytest.mark.parametrize(
    ("spec", "objects", "error", "why"),
    [
        pytest.param({}, {}, ForbiddenError, "", id="its own Pod"),
        pytest.param(
            {},
            {"pods": [pod({"deletionTimestamp": "2999-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30})]},
            ForbiddenError,
            "",
            id="its own Pod, which shuts down",
        ),
        pytest.param(
            {"nodeName": "n2"},
            {},
            ForbiddenError,
            'PodCertificateRequest.Spec.NodeName="n2", which is not the requesting node "n1"',
            id="in the name of another node",
        ),
        pytest.param(
            {"nodeUID": "old"},
            {},
            ConflictError,
            OF_POD + 'names node UID "old", inconsistent with the running node ("node-uid")',
            id="of an earlier Node of its name",
        ),
        pytest.param(
            {},
            {"nodes": []},
            ConflictError,
            'while retrieving node "n1" named in the PodCertificateRequest: node "n1" not found',
            id="before its Node is there",
        ),
        pytest.param(
            {},
            {"nodes": UNREADABLE},
            ForbiddenError,
            'while retrieving node "n1" named in the PodCertificateRequest: node "n1" cannot be read',
            id="while its Node cannot be read",
        ),
        pytest.param(
            {},
            {"pods": []},
            ConflictError,
            'while retrieving pod "ns/p" named in the PodCertificateRequest: pod "p" not found',
            id="for a Pod that does not exist",
        ),
        pytest.param(
            {},
            {"pods": [{**pod(), "metadata": {"name": "p", "namespace": "other", "uid": "pod-uid"}}]},
            ConflictError,
            'while retrieving pod "ns/p" named in the PodCertificateRequest: pod "p" not found',
            id="for a Pod of another namespace",
        ),
        pytest.param(
            {},
            {"pods": UNREADABLE},
            ForbiddenError,
            'while retrieving pod "ns/p" named in the PodCertificateRequest: pod "p" cannot be read',
            id="for a Pod that cannot be read",
        ),
        pytest.param(
            {},
            {"pods": [pod({"uid": "later"})]},
            ConflictError,
            OF_POD + 'contains pod UID ("pod-uid") which differs from running pod "later"',
            id="for an earlier Pod of this name",
        ),
        pytest.param(
            {},
            {"pods": [pod(nodeName="n2")]},
            ForbiddenError,
            'pod "ns/p" is not running on node "n1" named in the PodCertificateRequest',
            id="for a Pod of another node",
        ),
        pytest.param(
            {},
            {"pods": [pod({"annotations": {"kubernetes.io/config.mirror": "h"}})]},
            ForbiddenError,
            'pod "ns/p" is a mirror pod',
            id="for a mirror Pod, which it wrote itself",
        ),
        pytest.param(
            {"serviceAccountName": "admin"},
            {},
            ForbiddenError,
            OF_POD + 'contains serviceAccountName ("admin") that differs from running pod ("robot")',
            id="for another account than the Pod's",
        ),
        pytest.param({}, {"pods": [pod(phase="Failed")]}, ForbiddenError, HAS_ENDED, id="for a Pod that has ended"),
        pytest.param(
            {},
            {"pods": [pod({"deletionTimestamp": rfc3339(EPOCH)})]},
            ForbiddenError,
            HAS_ENDED,
            id="for a deleted Pod that it does not let go",
        ),
        pytest.param(
            {},
            {"serviceaccounts": []},
            ConflictError,
            OF_ACCOUNT + "not found",
            id="for an account that does not exist",
        ),
        pytest.param(
            {},
            {"serviceaccounts": UNREADABLE},
            ForbiddenError,
            OF_ACCOUNT + "cannot be read",
            id="for an account that cannot be read",
        ),
        pytest.param(
            {"serviceAccountUID": "old"},
            {},
            ConflictError,
            OF_POD + 'names service account UID "old", which differs from the running service account ("robot-uid")',
            id="for an earlier account of this name",
        ),
    ],
)
def test_a_node_requests_certificates_for_its_own_pods_only(
    spec: Obj, objects: dict[str, list[Obj] | FixedView], error: type[ApiError], why: str
) -> None:
    admit_node(write(wanted(**spec), views=views(**objects)), error, why)


def right(verb: str = "request-podcertificate-signer", **changes: str) -> Attributes:
    """Return the right to request a certificate of a signer that the Pod does not name. `changes` replace its attributes."""
    attributes = {"group": "certificates.k8s.io", "resource": "example.com:pods", "namespace": "ns", "name": "robot"}
    return Attributes(user=NODE, verb=verb, version="*", **{**attributes, **changes})


NO_VOLUME = (
    f'pod "ns/p" has no podCertificate volume of signer "{SIGNER}", and user "system:node:n1" is not authorized to '
    "request its certificates"
)


@pytest.mark.parametrize(
    ("volumes", "granted", "why"),
    [
        pytest.param([volume(SIGNER)], [], "", id="a signer of a volume"),
        pytest.param([volume("example.com/other"), volume(SIGNER)], [], "", id="a signer of one of two volumes"),
        pytest.param([volume("example.com/other")], [], NO_VOLUME, id="another signer than the volume's"),
        pytest.param([], [], NO_VOLUME, id="no volume"),
        pytest.param([], [right()], "", id="the right of the release notes"),
        pytest.param(
            [],
            [right("request-serviceaccounts-podcertificate-signer")],
            "",
            id="the right of programs that follow the source",
        ),
        pytest.param([], [right(resource=SIGNER)], NO_VOLUME, id="the right with a slash"),
        pytest.param([], [right(name="other")], NO_VOLUME, id="the right for another account"),
        pytest.param([], [right(namespace="other")], NO_VOLUME, id="the right in another namespace"),
        pytest.param([], [right(group="")], NO_VOLUME, id="the right in another group"),
        pytest.param([], [right("sign")], NO_VOLUME, id="another right"),
    ],
)
def test_signers_a_node_may_ask_for(volumes: list[Obj], granted: list[Attributes], why: str) -> None:
    asked = write(wanted(), views=views(pods=[pod(volumes=volumes)]), authorize=granting(*granted))
    admit_node(asked, ForbiddenError, why)


def test_no_right_is_asked_for_without_a_signer() -> None:
    """Validation then refuses the request of a node that may name any signer."""

    def everything(asked: Attributes) -> Decision:
        return Decision(Ruling.ALLOW)

    with pytest.raises(ForbiddenError, match="no podCertificate volume"):
        ADMISSION["NodeRestriction"]().admit(write(wanted(signerName=""), authorize=everything))


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        pytest.param({"ownerReferences": [OWNER]}, "", id="the Pod, as a kubelet writes"),
        pytest.param({"ownerReferences": [{**OWNER, "uid": "x"}]}, "an owner other than", id="another Pod"),
        pytest.param({"ownerReferences": [{**OWNER, "kind": "Secret"}]}, "an owner other than", id="another object"),
        pytest.param(
            {"ownerReferences": [{**OWNER, "blockOwnerDeletion": True}]},
            "an owner other than",
            id="the Pod, whose deletion it would block",
        ),
        pytest.param({"finalizers": ["a.b/c"]}, "not allowed to modify finalizers", id="a finalizer"),
    ],
)
def test_owners_that_a_node_may_give_a_request(metadata: Obj, why: str) -> None:
    plugin, asked = ADMISSION["NodeRestriction"](), write(wanted(metadata))
    if not why:
        plugin.admit(asked)
        return
    with pytest.raises(ForbiddenError, match=why):
        plugin.admit(asked)


@pytest.mark.parametrize(
    ("new", "old", "subresource", "operation"),
    [
        pytest.param(wanted({"labels": {"a": "b"}}), wanted(), "", "UPDATE", id="a label"),
        pytest.param({**wanted(), "status": {"conditions": []}}, wanted(), "status", "UPDATE", id="the status"),
        pytest.param(None, wanted(), "", "DELETE", id="a deletion"),
    ],
)
def test_a_node_only_creates_requests(new: Obj | None, old: Obj, subresource: str, operation: str) -> None:
    asked = write(new, old, subresource=subresource)
    admit_node(asked, ForbiddenError, f"unexpected operation {operation}")


# -- the right to sign ----------------------------------------------------------------------------------------------

JANE = UserInfo('j"ane')
ISSUED = {"conditions": [{"type": "Issued", "status": "True", "reason": "r"}], "certificateChain": "PEM"}
NOT_PERMITTED = (
    'PodCertificateRequest.certificates.k8s.io "req-1" is invalid: spec.signerName: Forbidden: '
    f'User "j\\"ane" is not permitted to "sign" for signer "{SIGNER}"'
)


def sign(name: str, verb: str = "sign") -> Attributes:
    return Attributes(user=JANE, verb=verb, group="certificates.k8s.io", version="*", resource="signers", name=name)


@pytest.mark.parametrize(
    ("granted", "allowed"),
    [
        pytest.param([sign(SIGNER)], True, id="sign on the signer"),
        pytest.param([sign("example.com/*")], True, id="sign on its domain"),
        pytest.param([sign("example.com/other")], False, id="sign on another signer"),
        pytest.param([sign("*")], False, id="sign on a name that is no signer's"),
        pytest.param([sign(SIGNER, "approve")], False, id="another verb"),
        pytest.param([], False, id="no right"),
    ],
)
@pytest.mark.parametrize(
    "status",
    [
        pytest.param(ISSUED, id="issue"),
        pytest.param({"conditions": [{"type": "Denied", "status": "True", "reason": "r"}]}, id="deny"),
        pytest.param({"notAfter": "2026-01-01T00:00:00Z"}, id="a time alone"),
    ],
)
def test_signing_needs_the_right_on_the_signer_or_its_domain(
    status: Obj, granted: list[Attributes], allowed: bool
) -> None:
    plugin = ADMISSION["PodCertificateSigning"]()
    # the new object may name any signer: the strategy resets it only where the kind says so
    new = {**wanted(signerName="example.com/other"), "status": status}
    asked = write(new, wanted(), JANE, subresource="status", authorize=granting(*granted))
    if allowed:
        plugin.admit(asked)
        return
    with pytest.raises(InvalidError) as caught:
        plugin.admit(asked)
    assert caught.value.message == NOT_PERMITTED
    assert [(cause.reason, cause.field) for cause in caught.value.details.causes] == [
        ("FieldValueForbidden", "spec.signerName")
    ]


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ({}, {}, False),
        (None, {"conditions": []}, False),
        ({"conditions": None}, {}, False),
        (ISSUED, ISSUED, False),
        (ISSUED, {}, True),
        (ISSUED, None, True),
        (ISSUED, {**ISSUED, "certificateChain": "other"}, True),
    ],
    ids=str,
)
def test_a_status_that_stays_as_it_is_needs_no_right(before: Obj | None, after: Obj | None, changes: bool) -> None:
    plugin = ADMISSION["PodCertificateSigning"]()
    asked = write({**wanted(), "status": after}, {**wanted(), "status": before}, JANE, subresource="status")
    if changes:
        with pytest.raises(InvalidError):
            plugin.admit(asked)
    else:
        plugin.admit(asked)


@pytest.mark.parametrize(
    ("new", "old"), [(wanted(), None), (wanted({"labels": {"a": "b"}}), wanted()), (None, wanted())], ids=str
)
def test_other_writes_need_no_right_to_sign(new: Obj | None, old: Obj | None) -> None:
    ADMISSION["PodCertificateSigning"]().admit(write(new, old, JANE))


def test_the_right_to_sign_is_always_asked_for_and_once_more_at_the_commit() -> None:
    assert "PodCertificateSigning" in ALWAYS_ENABLED & JUDGES_OF_RIGHTS
