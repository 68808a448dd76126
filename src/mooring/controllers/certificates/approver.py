"""certificatesigningrequest-approving-controller: approves kubelet client certificates when RBAC grants it to the requester.

Rules kept here (docs/protocol/certificate-signing-requests.md#approver):
* A request that has a certificate, Approved or Denied is left alone. The signer table lists the requests that can be approved
  automatically: kubelet client certificates, selfnodeclient (the requester's own name) before nodeclient.
* A SubjectAccessReview about the requester decides: create on certificatesigningrequests/<approval>. If allowed, the request gets
  the condition Approved through `/approval`, reason AutoApproved.
* A recognised request that is not allowed is planned again with back-off, because the permission may be granted later. Nothing is
  written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mooring.api.certificates.conditions import APPROVED
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, CheckAccess, Entropy, Key, Retry, Update
from mooring.controllers.certificates.requeststate import REQUESTS, is_undecided, parsed_request, with_condition
from mooring.pki.errors import RequestError
from mooring.pki.x509.signers import SIGNERS

REASON = "AutoApproved"
GROUP = "certificates.k8s.io"


@dataclass(frozen=True, slots=True)
class CsrApprover:
    """Approves kubelet client certificates."""

    name: str = "certificatesigningrequest-approving-controller"
    watches: tuple[str, ...] = (REQUESTS,)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        return (("", obj["metadata"]["name"]),) if not deleted and _may_be_approved(obj) else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        csr = views[REQUESTS].get(key[1])
        if csr is None or not _may_be_approved(csr):
            return ()
        spec = csr["spec"]
        try:
            request = parsed_request(spec["request"])
        except (RequestError, ValueError):  # ValueError: no base64
            return ()  # written by another server, since this one validates; the signer reports the error after an approval
        signer = SIGNERS[spec["signerName"]]
        return _check_approvals(
            csr, signer.approval_subresources(request, spec.get("usages") or (), spec.get("username", ""))
        )


def _may_be_approved(csr: Obj) -> bool:
    """Return true unless the signer or the state of the request excludes automatic approval. Cheap: it runs on every event."""
    signer = SIGNERS.get((csr.get("spec") or {}).get("signerName", ""))
    return signer is not None and bool(signer.auto_approvals) and is_undecided(csr)


def _check_approvals(csr: Obj, approvals: Sequence[str]) -> Sequence[Action]:
    """Check access to each approval in turn until one is allowed."""
    if not approvals:
        return ()
    approval, *rest = approvals

    def then(allowed: bool) -> Sequence[Action]:
        if allowed:
            message = f"Approved without a person: a SubjectAccessReview grants the requester {approval}."
            return (Update(REQUESTS, with_condition(csr, APPROVED, REASON, message), "approval"),)
        return _check_approvals(csr, rest) or (
            Retry("the requester may not have its kubelet client certificate approved by itself"),
        )

    return (CheckAccess(_access_review(csr["spec"], approval), then),)


def _access_review(spec: Obj, approval: str) -> Obj:
    user = {
        "user": spec.get("username"),
        "uid": spec.get("uid"),
        "groups": spec.get("groups"),
        "extra": spec.get("extra"),
    }
    attributes = {"group": GROUP, "resource": REQUESTS, "subresource": approval, "verb": "create", "version": "*"}
    return {
        "kind": "SubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "spec": {**{name: value for name, value in user.items() if value}, "resourceAttributes": attributes},
    }
