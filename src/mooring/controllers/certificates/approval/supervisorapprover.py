"""k3s-supervisor-approver: approves certificates that the supervisor requested for a machine which joins by k3s's way.

Rules kept here (docs/protocol/k3s.md#certificates, docs/adr/0052-certificates-of-k3s-agents.md):
* Only requests of the supervisor's signers are looked at, and only those that the supervisor itself made. The names in the
  machine's own request were replaced before (`mooring.pki.x509.supervisorsigners`).
* The server token and the agent token are permission to join, as in k3s. A node needs `selfnodeclient`, as for any renewal, and
  every other requester `nodeclient`, as for kubeadm's way: a token whose machines wait for a person waits here, too.
* The issuance checks come last, as everywhere. They decide about the names of a serving certificate (`certifiednames`).
* `would_approve` judges a request before the first node password of its name is stored: a request that is held or denied stores no
  password, which would keep the name from the machine that may have it. A serving certificate without a password is not approved
  here later, as it would claim no name (`name-ownership`): the agent that asks again stores its password.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes, Authorize
from mooring.controllers.actions import Action, CheckAccess, Entropy, Key, Retry
from mooring.controllers.certificates.approval.approver import GROUP, access_review, marked_as_not_granted
from mooring.controllers.certificates.approval.automaticapproval import approval, undecided
from mooring.controllers.certificates.issuance import (
    AUTOMATIC,
    Issuance,
    IssuanceCheck,
    Objection,
    find,
    held_or_denied,
    prepared,
    unobjected,
    watched,
)
from mooring.controllers.certificates.requeststate import REQUESTS, is_undecided, parsed_request
from mooring.identity import NODE_PREFIX, UserInfo
from mooring.pki.x509.signers import NODE_CLIENT, SELF_NODE_CLIENT, SIGNERS
from mooring.pki.x509.supervisorsigners import SUPERVISOR_SIGNERS, credential_in
from mooring.trust.k3s.identity import AGENTS, AUTHENTICATOR, SERVERS

REASON = f"{AUTOMATIC}ApprovedSupervisor"


@dataclass(frozen=True, slots=True)
class SupervisorApprover:
    """Approves requests that the supervisor made."""

    checks: tuple[IssuanceCheck, ...] = ()
    name: str = "k3s-supervisor-approver"

    @property
    def watches(self) -> tuple[str, ...]:
        return watched(self.checks)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        if plural != REQUESTS or deleted or not _may_be_approved(obj):
            return ()
        return (("", obj["metadata"]["name"]),)

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        issuance = undecided(key, views, now, _may_be_approved)
        if issuance is None:
            return ()
        spec = issuance.csr["spec"]
        if SIGNERS[issuance.signer_name].refusals(issuance.request, spec.get("usages") or ()):
            return ()
        if _has_cluster_token(issuance.csr):
            return self._approve(issuance, views, "the machine has the token of the cluster")
        subresource = _subresource(issuance.username)

        def then(allowed: bool) -> Sequence[Action]:
            if allowed:
                return self._approve(issuance, views, f"a SubjectAccessReview grants the requester {subresource}")
            return (
                *marked_as_not_granted(issuance, subresource),
                Retry(),
            )

        return (CheckAccess(access_review(spec, subresource), then),)

    def _approve(self, issuance: Issuance, views: Views, grounds: str) -> Sequence[Action]:
        finding = find(self.checks, issuance, views)
        if isinstance(finding, Objection):
            return held_or_denied(issuance.csr, finding, issuance.now)
        if finding is not None:
            return prepared(finding, issuance.now)
        return (approval(issuance.csr, REASON, grounds, unobjected(self.checks, issuance)),)


def would_approve(csr: Obj, checks: Sequence[IssuanceCheck], views: Views, now: datetime, authorize: Authorize) -> bool:
    """Return true when a request would be approved by itself once it proves a node password, as far as `checks` decide.

    An objection that the address of a DNS name may remove does not count. Raises RequestError.
    """
    issuance = Issuance(csr=csr, request=parsed_request(csr), now=now, automatic=True, precedes_password=True)
    finding = find(checks, issuance, views)
    if isinstance(finding, Objection) and not finding.unresolved:
        return False
    if _has_cluster_token(csr):
        return True
    spec = csr["spec"]
    extra = {name: tuple(values) for name, values in issuance.extra.items()}
    user = UserInfo(issuance.username, spec.get("uid", ""), tuple(spec.get("groups") or ()), extra)
    subresource = _subresource(user.username)
    return authorize(
        Attributes(user=user, verb="create", group=GROUP, version="*", resource=REQUESTS, subresource=subresource)
    ).allowed


def _subresource(username: str) -> str:
    """Return the subresource that a requester must be allowed to create."""
    return SELF_NODE_CLIENT if username.startswith(NODE_PREFIX) else NODE_CLIENT


def _has_cluster_token(csr: Obj) -> bool:
    return not {SERVERS, AGENTS}.isdisjoint(_token_groups(csr))


def _token_groups(csr: Obj) -> Sequence[str]:
    """Return the groups of a requester with the server token or the agent token; none of every other requester.

    A client certificate may name the same groups.
    """
    spec = csr["spec"]
    groups: Sequence[str] = spec.get("groups") or ()
    return groups if credential_in(spec.get("extra") or {}) == AUTHENTICATOR else ()


def _may_be_approved(csr: Obj) -> bool:
    """Return true for an undecided request that the supervisor made. Cheap: it runs on every event."""
    spec = csr.get("spec") or {}
    return (
        spec.get("signerName") in SUPERVISOR_SIGNERS
        and bool(credential_in(spec.get("extra") or {}))
        and is_undecided(csr)
    )
