"""certificatesigningrequest-approving-controller: approves kubelet client certificates when RBAC grants it to the requester.

Rules kept here (docs/protocol/certificate-signing-requests.md#approver):
* A request that has a certificate, Approved or Denied is left alone. The signer table lists the requests that can be approved
  automatically: kubelet client certificates, selfnodeclient (the requester's own name) before nodeclient.
* A SubjectAccessReview about the requester decides: create on certificatesigningrequests/<approval>. If allowed, the request gets
  the condition Approved through `/approval`, reason AutoApproved.
* A request of a recovering node is judged by the rule of `noderecovery` in place of the SubjectAccessReview.
* An allowed request still passes the issuance checks. An objection holds or denies it, and a condition says why.
* A recognised request that is not allowed is planned again with back-off, because the permission may be granted later.
  kube-controller-manager writes nothing then. Here the request gets the condition NeedsApproval once, which names the missing
  permission (docs/differences.md#kubelet-tls-bootstrap).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mooring.api.certificates.conditions import conditions_of
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, CheckAccess, Entropy, Key, Retry
from mooring.controllers.certificates.approval.automaticapproval import approval, undecided
from mooring.controllers.certificates.issuance import (
    NEEDS_APPROVAL,
    Issuance,
    IssuanceCheck,
    Objection,
    find,
    held_or_denied,
    marked_as_held,
    unobjected,
    watched,
)
from mooring.controllers.certificates.noderecovery import NodeRecovery, is_recovery
from mooring.controllers.certificates.requeststate import REQUESTS, is_undecided
from mooring.pki.x509.signers import SIGNERS

REASON = "AutoApproved"
NOT_GRANTED = "NotGranted"
"""Reason of NeedsApproval for a request that RBAC does not allow to be approved automatically."""
GROUP = "certificates.k8s.io"


@dataclass(frozen=True, slots=True)
class CsrApprover:
    """Approves kubelet client certificates."""

    checks: tuple[IssuanceCheck, ...] = ()
    recovery: NodeRecovery | None = None
    """Rule for machines whose certificate has expired; None leaves them to a person."""
    name: str = "certificatesigningrequest-approving-controller"

    @property
    def watches(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*watched(self.checks), *(self.recovery.watches if self.recovery else ()))))

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        if plural != REQUESTS or deleted or not _may_be_approved(obj):
            return ()
        return (("", obj["metadata"]["name"]),)

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        issuance = undecided(key, views, now, _may_be_approved)
        if issuance is None:
            return ()
        csr, spec = issuance.csr, issuance.csr["spec"]
        signer = SIGNERS[spec["signerName"]]
        approvals = signer.approval_subresources(issuance.request, spec.get("usages") or (), issuance.username)
        if approvals and self.recovery is not None and is_recovery(csr):
            objection = self.recovery.objection(issuance, views)
            if objection is not None:
                return held_or_denied(csr, objection, now)
            return self._approve(
                issuance, views, "the machine proved the key of its expired certificate, by which it is known"
            )
        return self._check_approvals(issuance, views, approvals)

    def _check_approvals(self, issuance: Issuance, views: Views, approvals: Sequence[str]) -> Sequence[Action]:
        """Check access to each approval in turn until one is allowed."""
        if not approvals:
            return ()
        subresource, *rest = approvals

        def then(allowed: bool) -> Sequence[Action]:
            if allowed:
                return self._approve(issuance, views, f"a SubjectAccessReview grants the requester {subresource}")
            return self._check_approvals(issuance, views, rest) or (
                *marked_as_not_granted(issuance, subresource),
                Retry(),
            )

        return (CheckAccess(access_review(issuance.csr["spec"], subresource), then),)

    def _approve(self, issuance: Issuance, views: Views, grounds: str) -> Sequence[Action]:
        """Approve a request that RBAC or the rule allows, unless an issuance check objects or has to claim something first."""
        finding = find(self.checks, issuance, views)
        if isinstance(finding, Objection):
            return held_or_denied(issuance.csr, finding, issuance.now)
        approved = approval(issuance.csr, REASON, grounds, unobjected(self.checks, issuance))
        return (*finding.actions, approved) if finding is not None else (approved,)


def _may_be_approved(csr: Obj) -> bool:
    """Return true unless the signer or the state of the request excludes automatic approval. Cheap: it runs on every event."""
    signer = SIGNERS.get((csr.get("spec") or {}).get("signerName", ""))
    return signer is not None and bool(signer.auto_approvals) and is_undecided(csr)


def marked_as_not_granted(issuance: Issuance, approval: str) -> Sequence[Action]:
    """Return the action that names the missing permission; none when the request says already why it waits.

    Two approvers that each insisted on their own reason would write without end.
    """
    if any(condition.get("type") == NEEDS_APPROVAL for condition in conditions_of(issuance.csr)):
        return ()
    message = (
        f'RBAC does not let "{issuance.username}" have its kubelet client certificate approved without a person. Grant it to one '
        f"of its groups by the ClusterRole system:certificates.k8s.io:certificatesigningrequests:{approval}, or approve the "
        "request by hand."
    )
    return marked_as_held(issuance.csr, Objection(NOT_GRANTED, message))


def access_review(spec: Obj, approval: str) -> Obj:
    """Return a SubjectAccessReview that asks whether the requester may have its requests approved automatically."""
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
