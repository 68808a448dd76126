"""kubelet-serving-approver: approves serving certificates of kubelets whose names and addresses belong to their Node.

kube-controller-manager approves none of them (docs/protocol/certificate-signing-requests.md#built-in-signers).

Rules kept here:
* The requester is the node: its username is the common name, and it is in the group system:nodes.
* A name or address is the Node's when its `status.addresses` lists it. Another DNS name is the Node's when it resolves, and every
  address of the answer is one of the Node's. A name of one label is never resolved, because it has no owner in the DNS.
* No other Node has the same name or address. Names and addresses of the control plane are for Nodes that an administrator has
  labelled as such, because a node reports its own addresses.
* A fault that no person would overlook denies the request at once: another node's name, a wildcard, names of the Service
  `kubernetes`, an address that no machine can have, too many names. Every other fault holds it with the condition NeedsApproval,
  because the cause may go away: the Node may report its addresses later, and a name server may answer then.
* A held request is planned again when its Node changes, and every HELD_FOR. The issuance checks come last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from mooring.api.certificates.conditions import APPROVED
from mooring.api.view import Views
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Addresses, Entropy, Key, Resolve, Update
from mooring.controllers.certificates.issuance import (
    AUTOMATIC,
    NEEDS_APPROVAL,
    Issuance,
    IssuanceCheck,
    Objection,
    find,
    held_or_denied,
    prepared,
    watched,
)
from mooring.controllers.certificates.nodeaddresses import (
    CONTROL_PLANE_KINDS,
    CONTROL_PLANE_LABEL,
    AddressIndex,
    Owned,
    control_plane,
    node_addresses,
)
from mooring.controllers.certificates.requeststate import (
    REQUESTS,
    is_undecided,
    parsed_request,
    with_condition,
    without_condition,
)
from mooring.identity import NODE_PREFIX, NODES
from mooring.pki.errors import RequestError
from mooring.pki.x509.names import IPAddress
from mooring.pki.x509.profiles import SERVICE_NAMES
from mooring.pki.x509.signers import KUBELET_SERVING, SIGNERS

NODE_KIND = "nodes"
REASON = f"{AUTOMATIC}ApprovedServing"
MAX_NAMES = 32
"""Names and addresses of one request. A Node has about five; the limit bounds the work, and the lookups, for one."""
_SHOWN = 5
"""Names in a message."""


@dataclass(frozen=True, slots=True)
class ServingApprover:
    """Approves serving certificates of kubelets."""

    checks: tuple[IssuanceCheck, ...] = ()
    name: str = "kubelet-serving-approver"
    _index: AddressIndex = field(default_factory=AddressIndex, repr=False, compare=False)
    _held: dict[str, set[str]] = field(default_factory=dict, repr=False, compare=False)
    """Names of held requests by the name of their node."""

    @property
    def watches(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*watched(self.checks), NODE_KIND, *CONTROL_PLANE_KINDS)))

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
        csr = views[REQUESTS].get(key[1])
        if csr is None or not _may_be_approved(csr):
            return ()
        try:
            request = parsed_request(csr)
        except (RequestError, ValueError):  # ValueError: no base64
            return ()  # written by another server, since this one validates
        issuance = Issuance(csr=csr, request=request, now=now, automatic=True)
        node_name = request.common_name.removeprefix(NODE_PREFIX)
        objection = _form_objection(issuance)
        if objection is not None:
            return held_or_denied(csr, objection, now)
        node = views[NODE_KIND].get(node_name)
        if node is None or node["metadata"].get("deletionTimestamp"):
            return self._object(
                issuance,
                node_name,
                Objection("NodeMissing", f'there is no Node "{node_name}"; it is checked again when it registers'),
            )
        objection = self._ownership_objection(issuance, node, views)
        if objection is not None:
            return self._object(issuance, node_name, objection)
        addresses = node_addresses(node)
        unlisted = tuple(
            one for one in dict.fromkeys(map(str.lower, request.alternative_names.dns)) if one not in addresses
        )
        if not unlisted:
            return self._approve(issuance, views, node_name)
        of_one_label = [one for one in unlisted if "." not in one]
        if of_one_label:
            return self._object(issuance, node_name, _not_of_node(node_name, of_one_label, "status.addresses lists"))

        def then(found: Addresses) -> Sequence[Action]:
            strange = [one for one in unlisted if not found[one] or not found[one] <= addresses]
            if strange:
                return self._object(
                    issuance, node_name, _not_of_node(node_name, strange, "the DNS knows for its addresses")
                )
            return self._approve(issuance, views, node_name)

        return (Resolve(unlisted, then),)

    def _ownership_objection(self, issuance: Issuance, node: Obj, views: Views) -> Objection | None:
        """Return an objection to names and addresses that are not this Node's alone."""
        name = node["metadata"]["name"]
        alternatives = issuance.request.alternative_names
        wanted: tuple[Owned, ...] = (*alternatives.ips, *map(str.lower, alternatives.dns))
        unlisted = [one for one in alternatives.ips if one not in node_addresses(node)]
        if unlisted:
            return Objection(
                "AddressNotOfNode",
                f'{_listed(unlisted)}: not among status.addresses of Node "{name}"; it is checked again when they change',
            )
        shared = {one: others for one in wanted if (others := self._index.others(one, name, views[NODE_KIND]))}
        if shared:
            owners = ", ".join(sorted({other for others in shared.values() for other in others})[:_SHOWN])
            return Objection(
                "AddressOfAnotherNode",
                f'{_listed(shared)}: claimed by Node "{name}" and also by {owners}; correct the addresses, or delete the Node '
                "that is gone",
            )
        if CONTROL_PLANE_LABEL in (node["metadata"].get("labels") or {}):
            return None
        published = control_plane(views)
        reserved = [one for one in wanted if one in published]
        if reserved:
            return Objection(
                "AddressOfControlPlane",
                f'{_listed(reserved)}: clients reach the API server there; label Node "{name}" with {CONTROL_PLANE_LABEL} if it '
                "belongs to the control plane",
            )
        return None

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

    def _approve(self, issuance: Issuance, views: Views, node_name: str) -> Sequence[Action]:
        finding = find(self.checks, issuance, views)
        if isinstance(finding, Objection):
            return self._object(issuance, node_name, finding)
        if finding is not None:
            return prepared(finding, issuance.now)
        message = f'Approved without a person: every name and address belongs to Node "{node_name}" alone.'
        csr = without_condition(issuance.csr, NEEDS_APPROVAL)
        return (Update(REQUESTS, with_condition(csr, APPROVED, REASON, message), "approval"),)


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
    alternatives = request.alternative_names
    if len(alternatives.dns) + len(alternatives.ips) > MAX_NAMES:
        return Objection("TooManyNames", f"more than {MAX_NAMES} names and addresses are in one request", denies=True)
    return next(_name_objections(alternatives.dns, alternatives.ips), None)


def _name_objections(dns: Iterable[str], ips: Iterable[IPAddress]) -> Iterator[Objection]:
    for name in dns:
        if "*" in name:
            yield Objection("WildcardName", f'"{name}": a node has no wildcard names', denies=True)
        elif dns1123_subdomain_errors(name.lower()):
            yield Objection("InvalidName", f'"{name}" is not a DNS name', denies=True)
        elif name.lower() in SERVICE_NAMES or name.lower().endswith((".svc", ".svc.cluster.local")):
            yield Objection("ReservedName", f'"{name}" is a name of a Service, not of a node', denies=True)
    for address in ips:
        if address.is_unspecified or address.is_multicast:
            yield Objection("InvalidAddress", f"{address} is not the address of a machine", denies=True)


def _not_of_node(node_name: str, names: Sequence[str], where: str) -> Objection:
    return Objection(
        "NameNotOfNode",
        f'{_listed(names)}: not among the names of Node "{node_name}" that {where}; it is checked again',
    )


def _listed(addresses: Iterable[Owned]) -> str:
    texts = [str(one) for one in addresses]
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more
