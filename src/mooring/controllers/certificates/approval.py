"""Automatic approval of certificate requests: by rights, by the inventory, and of serving and supervisor certificates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain

from mooring.api.certificates.requestrecords import APPROVED, conditions_of
from mooring.api.certificates.requeststate import (
    REQUESTS,
    is_undecided,
    parsed_request,
    with_condition,
    without_condition,
)
from mooring.api.mooring.authorizedmachine import PLURAL, used_by
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes, Authorize
from mooring.controllers.actions import (
    Action,
    Addresses,
    CheckAccess,
    CommitPrecondition,
    Entropy,
    Key,
    Requeue,
    Resolve,
    Retry,
    Update,
)
from mooring.controllers.certificates.inventory import MachineInventory, concerns
from mooring.controllers.certificates.issuance import (
    AUTOMATIC,
    NEEDS_APPROVAL,
    Hold,
    IssuanceCheck,
    PendingIssue,
    find,
    held_or_denied,
    held_until,
    marked_as_held,
    no_hold,
    reserved,
    watched,
)
from mooring.controllers.certificates.noderecovery import NodeRecovery, is_recovery
from mooring.identity import ANONYMOUS, NODE_PREFIX, NODES, UserInfo
from mooring.pki.errors import RequestError
from mooring.pki.x509.signers import (
    KUBE_APISERVER_CLIENT_KUBELET,
    KUBELET_SERVING,
    NODE_CLIENT,
    SELF_NODE_CLIENT,
    SIGNERS,
    SUPERVISOR_SIGNERS,
    credential_in,
)
from mooring.trust.k3s.identity import AGENTS, AUTHENTICATOR, SERVERS

# Steps that all approvers of this program share: read an undecided request, and approve it.


def undecided(key: Key, views: Views, now: datetime, may_be_approved: Callable[[Obj], bool]) -> PendingIssue | None:
    """Return the request of a key; None when it is gone, decided, or not for this approver, and when it cannot be read.

    One that cannot be read was written by another server, since this one validates. The signer reports it after an approval.
    """
    csr = views[REQUESTS].get(key[1])
    if csr is None or not may_be_approved(csr):
        return None
    try:
        request = parsed_request(csr)
    except (RequestError, ValueError):  # ValueError: no base64
        return None
    return PendingIssue(csr=csr, request=request, now=now, automatic=True)


def approval(csr: Obj, reason: str, grounds: str, precondition: CommitPrecondition) -> Update:
    """Return the action that approves a request, which needs no person any more. `precondition` judges it at its commit."""
    message = f"Approved without a person: {grounds}."
    approved = with_condition(without_condition(csr, NEEDS_APPROVAL), APPROVED, reason, message)
    return Update(REQUESTS, approved, "approval", precondition)


# certificatesigningrequest-approving-controller: approves kubelet client certificates when RBAC grants it to the requester.
#
# Rules kept here (docs/protocol/certificate-signing-requests.md#approver):
# * A request that has a certificate, Approved or Denied is left alone. The signer table lists the requests that can be approved
#   automatically: kubelet client certificates, selfnodeclient (the requester's own name) before nodeclient.
# * A SubjectAccessReview about the requester decides: create on certificatesigningrequests/<approval>. If allowed, the request
#   gets the condition Approved through `/approval`, reason AutoApproved.
# * A request of a recovering node is judged by the rule of `noderecovery` in place of the SubjectAccessReview.
# * An allowed request still passes the issuance checks. One with a hold waits for a person or is denied, and a condition says why.
# * A recognised request that is not allowed is planned again with back-off, because the permission may be granted later.
#   kube-controller-manager writes nothing then. Here the request gets the condition NeedsApproval once, which names the missing
#   permission (docs/differences.md#kubelet-tls-bootstrap).

CLIENT_REASON = "AutoApproved"
NOT_GRANTED = "NotGranted"
"""Reason of NeedsApproval for a request that RBAC does not allow to be approved automatically."""
JOIN_REQUESTED = "JoinRequested"
"""Reason of NeedsApproval for a request that was made without a credential."""
GROUP = "certificates.k8s.io"


@dataclass(frozen=True, slots=True)
class CsrApprover:
    """Approves kubelet client certificates."""

    checks: tuple[IssuanceCheck, ...] = ()
    recovery: NodeRecovery | None = None
    """Rule for machines whose certificate has expired; None leaves them to a person."""
    inventory: MachineInventory | None = None
    """Inventory that explains why it does not authorize a request; None where no controller approves by it."""
    name: str = "certificatesigningrequest-approving-controller"

    @property
    def watches(self) -> tuple[str, ...]:
        parts = (part.watches for part in (self.recovery, self.inventory) if part is not None)
        return tuple(dict.fromkeys((*watched(self.checks), *chain.from_iterable(parts))))

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        if plural != REQUESTS or deleted or not _waits_for_access_review(obj):
            return ()
        return (("", obj["metadata"]["name"]),)

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        pending = undecided(key, views, now, _waits_for_access_review)
        if pending is None:
            return ()
        csr, spec = pending.csr, pending.csr["spec"]
        signer = SIGNERS[spec["signerName"]]
        approvals = signer.approval_subresources(pending.request, spec.get("usages") or (), pending.username)
        if approvals and self.recovery is not None and is_recovery(csr):
            hold = self.recovery.hold(pending, views)
            if hold is not None:
                return held_or_denied(csr, hold, now)
            return self._approve(
                pending, views, "the machine proved the key of its expired certificate, by which it is known"
            )
        return self._check_approvals(pending, views, approvals)

    def _check_approvals(self, pending: PendingIssue, views: Views, approvals: Sequence[str]) -> Sequence[Action]:
        """Check access to each approval in turn until one is allowed."""
        if not approvals:
            return ()
        subresource, *rest = approvals

        def then(allowed: bool) -> Sequence[Action]:
            if allowed:
                return self._approve(pending, views, f"a SubjectAccessReview grants the requester {subresource}")
            if rest:
                return self._check_approvals(pending, views, rest)
            hold = not_granted(pending, subresource)
            explained = self._explained(hold, pending, views)
            # The condition names an entry that may be removed: back-off would leave it wrong for a quarter of an hour.
            again = Retry() if explained is hold else Requeue(held_until(pending.csr, pending.now))
            return (*marked_as_not_granted(pending, explained), again)

        return (CheckAccess(access_review(pending.csr["spec"], subresource), then),)

    def _explained(self, hold: Hold, pending: PendingIssue, views: Views) -> Hold:
        return hold if self.inventory is None else self.inventory.explained(hold, pending, views)

    def _approve(self, pending: PendingIssue, views: Views, grounds: str) -> Sequence[Action]:
        """Approve a request that RBAC or the rule allows, unless an issuance check objects or has to claim something first."""
        finding = find(self.checks, pending, views)
        if isinstance(finding, Hold):
            return held_or_denied(pending.csr, self._explained(finding, pending, views), pending.now)
        approved = approval(pending.csr, CLIENT_REASON, grounds, no_hold(self.checks, pending))
        return (*finding.actions, approved) if finding is not None else (approved,)


def _waits_for_access_review(csr: Obj) -> bool:
    """Return true unless the signer or the state of the request excludes automatic approval. Cheap: it runs on every event."""
    signer = SIGNERS.get((csr.get("spec") or {}).get("signerName", ""))
    return signer is not None and bool(signer.auto_approvals) and is_undecided(csr)


def marked_as_not_granted(pending: PendingIssue, hold: Hold) -> Sequence[Action]:
    """Return the action that names the missing permission; none when the request waits for another reason.

    Two approvers that each insisted on their own reason would write without end.
    """
    conditions = conditions_of(pending.csr)
    if any(one.get("type") == NEEDS_APPROVAL and one.get("reason") != NOT_GRANTED for one in conditions):
        return ()
    return marked_as_held(pending.csr, hold)


def not_granted(pending: PendingIssue, approval: str) -> Hold:
    """Return the hold on a request whose requester lacks a permission; of a machine without a credential, how to let it in."""
    if pending.username == ANONYMOUS:
        return Hold(
            JOIN_REQUESTED,
            f"the machine asks without a credential: compare its code (mooring machine list --pending), then run mooring machine "
            f"approve {pending.node_name}",
        )
    message = (
        f'RBAC does not let "{pending.username}" have its kubelet client certificate approved without a person. Grant it to one '
        f"of its groups by the ClusterRole system:certificates.k8s.io:certificatesigningrequests:{approval}, or approve the "
        "request by hand."
    )
    return Hold(NOT_GRANTED, message)


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


# machine-inventory-approver: approves client certificates of machines that proved to be the ones that an administrator
# authorized.
#
# Rules kept here:
# * An AuthorizedMachine that names a key or a code authorizes by itself: the requester needs no right to have its request
#   approved, only the right to create it. A token for such machines can therefore do without automatic approval.
# * The issuance checks follow; one of them claims the entry, and the request is approved after that.
# * A request that fits no entry is left to the other approvers, which say why it waits. It is planned again when an entry
#   appears.

INVENTORY_REASON = f"{AUTOMATIC}ApprovedMachine"


@dataclass(frozen=True, slots=True)
class InventoryApprover:
    """Approves requests of authorized machines."""

    checks: tuple[IssuanceCheck, ...] = ()
    inventory: MachineInventory = field(default_factory=MachineInventory)
    name: str = "machine-inventory-approver"
    _waiting: set[str] = field(default_factory=set, repr=False, compare=False)
    """Names of requests that fit no entry."""

    @property
    def watches(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*watched(self.checks), PLURAL)))

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        name = obj["metadata"]["name"]
        if plural == PLURAL:
            if deleted or used_by(obj) is not None:
                return ()  # of no use to another request; each join would plan all that wait
            waiting = [("", one) for one in self._waiting]
            self._waiting.clear()
            return waiting
        if plural != REQUESTS:
            return ()
        if not deleted and _waits_for_inventory(obj):
            return (("", name),)
        self._waiting.discard(name)
        return ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        pending = undecided(key, views, now, _waits_for_inventory)
        if pending is None:
            return ()
        csr, usages = pending.csr, pending.csr["spec"].get("usages") or ()
        if not concerns(pending) or SIGNERS[pending.signer_name].refusals(pending.request, usages):
            return ()
        match = self.inventory.match(pending, views)
        if not match.authorizes:
            self._waiting.add(key[1])
            return ()
        finding = find(self.checks, pending, views)
        if isinstance(finding, Hold):
            return held_or_denied(csr, finding, now)
        if finding is not None:
            return reserved(finding, now)
        assert match.entry is not None  # it authorizes
        grounds = f'the machine is "{match.entry["metadata"]["name"]}" of the authorized machines'
        return (approval(csr, INVENTORY_REASON, grounds, no_hold(self.checks, pending)),)


def _waits_for_inventory(csr: Obj) -> bool:
    return (csr.get("spec") or {}).get("signerName") == KUBE_APISERVER_CLIENT_KUBELET and is_undecided(csr)


# kubelet-serving-approver: approves serving certificates of kubelets whose names and addresses belong to their Node.
#
# kube-controller-manager approves none of them (docs/protocol/certificate-signing-requests.md#built-in-signers).
#
# Rules kept here:
# * The requester is the node: its username is the common name, and it is in the group system:nodes. Its Node exists.
# * The issuance checks decide about the names (`certifiednames`). When the DNS may change their finding, the names are resolved
#   and the checks run again.
# * A held request gets the condition NeedsApproval, because the cause may go away: the Node may report its addresses later, and a
#   name server may answer then. It is planned again when its Node changes, and every HELD_FOR.

NODE_KIND = "nodes"
SERVING_REASON = f"{AUTOMATIC}ApprovedServing"


@dataclass(frozen=True, slots=True)
class ServingApprover:
    """Approves serving certificates of kubelets."""

    checks: tuple[IssuanceCheck, ...] = ()
    name: str = "kubelet-serving-approver"
    _held: dict[str, set[str]] = field(default_factory=dict, repr=False, compare=False)
    """Names of held requests by the name of their node."""

    @property
    def watches(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*watched(self.checks), NODE_KIND)))

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        name = obj["metadata"]["name"]
        if plural == NODE_KIND:
            return [("", held) for held in self._held.pop(name, ())]
        if plural != REQUESTS:
            return ()
        if not deleted and _waits_for_evidence(obj):
            return (("", name),)
        self._forget(obj)
        return ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        pending = undecided(key, views, now, _waits_for_evidence)
        if pending is None:
            return ()
        node_name = pending.request.common_name.removeprefix(NODE_PREFIX)
        hold = _form_hold(pending)
        if hold is not None:
            return held_or_denied(pending.csr, hold, now)
        node = views[NODE_KIND].get(node_name)
        if node is None or node["metadata"].get("deletionTimestamp"):
            return self._object(
                pending,
                node_name,
                Hold("NodeMissing", f'there is no Node "{node_name}"; it is checked again when it registers'),
            )
        return self._decide(pending, views, node_name)

    def _decide(self, pending: PendingIssue, views: Views, node_name: str) -> Sequence[Action]:
        finding = find(self.checks, pending, views)
        if isinstance(finding, Hold):
            if not finding.unresolved:
                return self._object(pending, node_name, finding)

            def then(found: Addresses) -> Sequence[Action]:
                return self._decide(replace(pending, resolved=found), views, node_name)

            # Resolved only when the DNS may change the finding, because a name server may be slow or down.
            return (Resolve(finding.unresolved, pending.username, then),)
        if finding is not None:
            return reserved(finding, pending.now)
        grounds = f'every name and address belongs to Node "{node_name}" alone'
        return (approval(pending.csr, SERVING_REASON, grounds, no_hold(self.checks, pending)),)

    def _object(self, pending: PendingIssue, node_name: str, hold: Hold) -> Sequence[Action]:
        """Hold the request until its Node changes, or deny it."""
        if not hold.denies:
            self._held.setdefault(node_name, set()).add(pending.csr["metadata"]["name"])
        return held_or_denied(pending.csr, hold, pending.now)

    def _forget(self, csr: Obj) -> None:
        """Drop a request that was decided or deleted from the held ones."""
        node_name = str((csr.get("spec") or {}).get("username", "")).removeprefix(NODE_PREFIX)
        held = self._held.get(node_name)
        if held is not None:
            held.discard(csr["metadata"]["name"])
            if not held:
                del self._held[node_name]


def _waits_for_evidence(csr: Obj) -> bool:
    return (csr.get("spec") or {}).get("signerName") == KUBELET_SERVING and is_undecided(csr)


def _form_hold(pending: PendingIssue) -> Hold | None:
    """Return a hold on the request as it stands, without a look at the Node."""
    request, spec = pending.request, pending.csr["spec"]
    refusals = SIGNERS[KUBELET_SERVING].refusals(request, spec.get("usages") or ())
    if refusals:
        return Hold("NotAServingRequest", "; ".join(refusals), denies=True)
    if NODES not in (spec.get("groups") or ()) or not pending.username.startswith(NODE_PREFIX):
        return Hold(
            "RequesterIsNoNode",
            f'"{pending.username}" is no node: only a node has its own serving certificate approved without a person',
        )
    if pending.username != request.common_name:
        return Hold(
            "RequesterIsAnotherNode",
            f'"{pending.username}" asks for a certificate of "{request.common_name}"; a node may ask for its own only',
            denies=True,
        )
    return None


# k3s-supervisor-approver: approves certificates that the supervisor requested for a machine which joins by k3s's way.
#
# Rules kept here (docs/protocol/k3s.md#certificates, docs/adr/0052-certificates-of-k3s-agents.md):
# * Only requests of the supervisor's signers are looked at, and only those that the supervisor itself made. The names in the
#   machine's own request were replaced before (`mooring.pki.x509.signers`).
# * The server token and the agent token are permission to join, as in k3s. A node needs `selfnodeclient`, as for any renewal, and
#   every other requester `nodeclient`, as for kubeadm's way: a token whose machines wait for a person waits here, too.
# * The issuance checks come last, as everywhere. They decide about the names of a serving certificate (`certifiednames`).
# * `would_approve` judges a request before the first node password of its name is stored: a request that is held or denied stores
#   no password, which would keep the name from the machine that may have it. A serving certificate without a password is not
#   approved here later, as it would claim no name (`name-ownership`): the agent that asks again stores its password.

SUPERVISOR_REASON = f"{AUTOMATIC}ApprovedSupervisor"


@dataclass(frozen=True, slots=True)
class SupervisorApprover:
    """Approves requests that the supervisor made."""

    checks: tuple[IssuanceCheck, ...] = ()
    name: str = "k3s-supervisor-approver"

    @property
    def watches(self) -> tuple[str, ...]:
        return watched(self.checks)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        if plural != REQUESTS or deleted or not _waits_for_supervisor(obj):
            return ()
        return (("", obj["metadata"]["name"]),)

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        pending = undecided(key, views, now, _waits_for_supervisor)
        if pending is None:
            return ()
        spec = pending.csr["spec"]
        if SIGNERS[pending.signer_name].refusals(pending.request, spec.get("usages") or ()):
            return ()
        if _has_cluster_token(pending.csr):
            return self._approve(pending, views, "the machine has the token of the cluster")
        subresource = _subresource(pending.username)

        def then(allowed: bool) -> Sequence[Action]:
            if allowed:
                return self._approve(pending, views, f"a SubjectAccessReview grants the requester {subresource}")
            return (
                *marked_as_not_granted(pending, not_granted(pending, subresource)),
                Retry(),
            )

        return (CheckAccess(access_review(spec, subresource), then),)

    def _approve(self, pending: PendingIssue, views: Views, grounds: str) -> Sequence[Action]:
        finding = find(self.checks, pending, views)
        if isinstance(finding, Hold):
            return held_or_denied(pending.csr, finding, pending.now)
        if finding is not None:
            return reserved(finding, pending.now)
        return (approval(pending.csr, SUPERVISOR_REASON, grounds, no_hold(self.checks, pending)),)


def would_approve(csr: Obj, checks: Sequence[IssuanceCheck], views: Views, now: datetime, authorize: Authorize) -> bool:
    """Return true when a request would be approved by itself once it proves a node password, as far as `checks` decide.

    A hold that the address of a DNS name may remove does not count. Raises RequestError.
    """
    pending = PendingIssue(csr=csr, request=parsed_request(csr), now=now, automatic=True, precedes_password=True)
    finding = find(checks, pending, views)
    if isinstance(finding, Hold) and not finding.unresolved:
        return False
    if _has_cluster_token(csr):
        return True
    spec = csr["spec"]
    extra = {name: tuple(values) for name, values in pending.extra.items()}
    user = UserInfo(pending.username, spec.get("uid", ""), tuple(spec.get("groups") or ()), extra)
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


def _waits_for_supervisor(csr: Obj) -> bool:
    """Return true for an undecided request that the supervisor made. Cheap: it runs on every event."""
    spec = csr.get("spec") or {}
    return (
        spec.get("signerName") in SUPERVISOR_SIGNERS
        and bool(credential_in(spec.get("extra") or {}))
        and is_undecided(csr)
    )
