"""machine-inventory-approver: approves client certificates of machines that proved to be the ones that an administrator authorized.

Rules kept here:
* An AuthorizedMachine that names a key or a code authorizes by itself: the requester needs no right to have its request approved,
  only the right to create it. A token for such machines can therefore do without automatic approval.
* The issuance checks follow; one of them claims the entry, and the request is approved after that.
* A request that fits no entry is left to the other approvers, which say why it waits. It is planned again when an entry appears.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from mooring.api.mooring.authorizedmachine import PLURAL, used_by
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Entropy, Key
from mooring.controllers.certificates.approval.automaticapproval import approval, undecided
from mooring.controllers.certificates.inventory import MachineInventory, concerns
from mooring.controllers.certificates.issuance import (
    AUTOMATIC,
    IssuanceCheck,
    Objection,
    find,
    held_or_denied,
    prepared,
    unobjected,
    watched,
)
from mooring.controllers.certificates.requeststate import REQUESTS, is_undecided
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT_KUBELET, SIGNERS

REASON = f"{AUTOMATIC}ApprovedMachine"


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
        if not deleted and _may_be_approved(obj):
            return (("", name),)
        self._waiting.discard(name)
        return ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        issuance = undecided(key, views, now, _may_be_approved)
        if issuance is None:
            return ()
        csr, usages = issuance.csr, issuance.csr["spec"].get("usages") or ()
        if not concerns(issuance) or SIGNERS[issuance.signer_name].refusals(issuance.request, usages):
            return ()
        match = self.inventory.match(issuance, views)
        if not match.authorizes:
            self._waiting.add(key[1])
            return ()
        finding = find(self.checks, issuance, views)
        if isinstance(finding, Objection):
            return held_or_denied(csr, finding, now)
        if finding is not None:
            return prepared(finding, now)
        assert match.entry is not None  # it authorizes
        grounds = f'the machine is "{match.entry["metadata"]["name"]}" of the authorized machines'
        return (approval(csr, REASON, grounds, unobjected(self.checks, issuance)),)


def _may_be_approved(csr: Obj) -> bool:
    return (csr.get("spec") or {}).get("signerName") == KUBE_APISERVER_CLIENT_KUBELET and is_undecided(csr)
