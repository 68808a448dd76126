"""certificatesigningrequest-approving-controller: approves what the requester may have approved by itself.

Rules kept here (docs/protocol/certificate-signing-requests.md#approver):
* A request that has a certificate, Approved or Denied is left alone. The signer table says which requests may be approved
  without a person: kubelet client certificates, selfnodeclient (the requester's own name) before nodeclient.
* The right is asked of the cluster, as a SubjectAccessReview about the requester: create on
  certificatesigningrequests/<approval>. Allowed is Approved through `/approval`, reason AutoApproved.
* Recognised but not allowed is tried again with back-off, since the right may be granted later; nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mooring.api.certificates.conditions import APPROVED
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Ask, Entropy, Key, Retry, Update
from mooring.controllers.certificates.requeststate import REQUESTS, parsed, undecided, with_condition
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
        return (("", obj["metadata"]["name"]),) if not deleted and _may_concern(obj) else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        csr = views[REQUESTS].get(key[1])
        if csr is None or not _may_concern(csr):
            return ()
        spec = csr["spec"]
        try:
            request = parsed(spec["request"])
        except (RequestError, ValueError):  # ValueError: no base64
            return ()  # not from our API, which validates; the signer says what is wrong once somebody approves it
        signer = SIGNERS[spec["signerName"]]
        return _ask(csr, signer.approvals_to_ask(request, spec.get("usages") or (), spec.get("username", "")))


def _may_concern(csr: Obj) -> bool:
    """The cheap half of the decision, for every event."""
    signer = SIGNERS.get((csr.get("spec") or {}).get("signerName", ""))
    return signer is not None and bool(signer.auto_approvals) and undecided(csr)


def _ask(csr: Obj, approvals: Sequence[str]) -> Sequence[Action]:
    """Ask for each approval in turn until one is granted."""
    if not approvals:
        return ()
    approval, *rest = approvals

    def answered(allowed: bool) -> Sequence[Action]:
        if allowed:
            message = f"Approved without a person: a SubjectAccessReview grants the requester {approval}."
            return (Update(REQUESTS, with_condition(csr, APPROVED, REASON, message), "approval"),)
        return _ask(csr, rest) or (
            Retry("the requester may not have its kubelet client certificate approved by itself"),
        )

    return (Ask(_review(csr["spec"], approval), answered),)


def _review(spec: Obj, approval: str) -> Obj:
    who = {
        "user": spec.get("username"),
        "uid": spec.get("uid"),
        "groups": spec.get("groups"),
        "extra": spec.get("extra"),
    }
    attributes = {"group": GROUP, "resource": REQUESTS, "subresource": approval, "verb": "create", "version": "*"}
    return {
        "kind": "SubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "spec": {**{name: value for name, value in who.items() if value}, "resourceAttributes": attributes},
    }
