"""kubelet-serving-approver: approves serving certificates of kubelets whose names and addresses belong to their Node.

kube-controller-manager approves none of them (docs/protocol/certificate-signing-requests.md#built-in-signers).

Rules kept here:
* The requester is the node: its username is the common name, and it is in the group system:nodes. Its Node exists.
* The issuance checks decide about the names (`certifiednames`). When the DNS may change their finding, the names are resolved and
  the checks run again.
* A held request gets the condition NeedsApproval, because the cause may go away: the Node may report its addresses later, and a
  name server may answer then. It is planned again when its Node changes, and every HELD_FOR.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Addresses, Entropy, Key, Resolve
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
from mooring.controllers.certificates.requeststate import REQUESTS, is_undecided
from mooring.identity import NODE_PREFIX, NODES
from mooring.pki.x509.signers import KUBELET_SERVING, SIGNERS

NODE_KIND = "nodes"
REASON = f"{AUTOMATIC}ApprovedServing"


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
        if not deleted and _may_be_approved(obj):
            return (("", name),)
        self._forget(obj)
        return ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        issuance = undecided(key, views, now, _may_be_approved)
        if issuance is None:
            return ()
        node_name = issuance.request.common_name.removeprefix(NODE_PREFIX)
        objection = _form_objection(issuance)
        if objection is not None:
            return held_or_denied(issuance.csr, objection, now)
        node = views[NODE_KIND].get(node_name)
        if node is None or node["metadata"].get("deletionTimestamp"):
            return self._object(
                issuance,
                node_name,
                Objection("NodeMissing", f'there is no Node "{node_name}"; it is checked again when it registers'),
            )
        return self._decide(issuance, views, node_name)

    def _decide(self, issuance: Issuance, views: Views, node_name: str) -> Sequence[Action]:
        finding = find(self.checks, issuance, views)
        if isinstance(finding, Objection):
            if not finding.unresolved:
                return self._object(issuance, node_name, finding)

            def then(found: Addresses) -> Sequence[Action]:
                return self._decide(replace(issuance, resolved=found), views, node_name)

            return (Resolve(finding.unresolved, issuance.username, then),)
        if finding is not None:
            return prepared(finding, issuance.now)
        grounds = f'every name and address belongs to Node "{node_name}" alone'
        return (approval(issuance.csr, REASON, grounds, unobjected(self.checks, issuance)),)

    def _object(self, issuance: Issuance, node_name: str, objection: Objection) -> Sequence[Action]:
        """Hold the request until its Node changes, or deny it."""
        if not objection.denies:
            self._held.setdefault(node_name, set()).add(issuance.csr["metadata"]["name"])
        return held_or_denied(issuance.csr, objection, issuance.now)

    def _forget(self, csr: Obj) -> None:
        """Drop a request that was decided or deleted from the held ones."""
        node_name = str((csr.get("spec") or {}).get("username", "")).removeprefix(NODE_PREFIX)
        held = self._held.get(node_name)
        if held is not None:
            held.discard(csr["metadata"]["name"])
            if not held:
                del self._held[node_name]


def _may_be_approved(csr: Obj) -> bool:
    return (csr.get("spec") or {}).get("signerName") == KUBELET_SERVING and is_undecided(csr)


def _form_objection(issuance: Issuance) -> Objection | None:
    """Return an objection to the request as it stands, without a look at the Node."""
    request, spec = issuance.request, issuance.csr["spec"]
    refusals = SIGNERS[KUBELET_SERVING].refusals(request, spec.get("usages") or ())
    if refusals:
        return Objection("NotAServingRequest", "; ".join(refusals), denies=True)
    if NODES not in (spec.get("groups") or ()) or not issuance.username.startswith(NODE_PREFIX):
        return Objection(
            "RequesterIsNoNode",
            f'"{issuance.username}" is no node: only a node has its own serving certificate approved without a person',
        )
    if issuance.username != request.common_name:
        return Objection(
            "RequesterIsAnotherNode",
            f'"{issuance.username}" asks for a certificate of "{request.common_name}"; a node may ask for its own only',
            denies=True,
        )
    return None
