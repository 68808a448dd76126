"""Issuance check `certified-names`: the gate of names for every signer whose certificates can serve.

Rules kept here:
* It gathers the evidence and calls the gate (`rules`). It runs before the approval and before the signature,
  for kubelets' serving certificates by kubeadm's way and by k3s's, and for every other signer.
* The names of a certificate are recorded in the NodeIdentity before it is issued. They belong to the machine from then on. Of two
  machines that claim one address at the same moment, one at least finds the record of the other before the signature.
* An address that a machine reported, and that it leaves, is recorded as left: the next machine that has it is certified for it. The
  request that says so need not be granted: of two machines that exchange their addresses, each would wait for the other.
* The approval of a person outweighs what is held, and nothing else. Its names are recorded, too. What an administrator granted to
  a machine counts in requests of this machine: a person may approve one that a stranger made under its name.
* Outside of a Mooring server the source address of a request is not known. The addresses that a Node reports stand for it there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from mooring.api.certificates.requestrecords import source_address_of
from mooring.api.mooring.authorizedmachine import PLURAL as MACHINES
from mooring.api.mooring.authorizedmachine import serving_names_of
from mooring.api.mooring.membership import new_identity, was_deleted, with_spec
from mooring.api.mooring.nodeidentity import MAX_CERTIFIED, certified_names_of
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.api.objectmeta import spec_of
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.controllers.actions import Create, Update
from mooring.controllers.certificates.inventory import MachineIndex, counts_for_holder
from mooring.controllers.certificates.issuance import CheckResult, Hold, PendingIssue, Reservation, longest_life
from mooring.controllers.certificates.sanpolicy.evidence import (
    CONFIG_MAPS,
    ENDPOINTS,
    NODES,
    SERVICES,
    Holders,
    Reserved,
    has_passed,
    held_names,
    node_addresses,
    own_addresses,
)
from mooring.controllers.certificates.sanpolicy.rules import (
    CONTROL_PLANE,
    NodeEvidence,
    RefusalEffect,
    Reservations,
    judge_node,
    judge_server,
)
from mooring.controllers.certificates.signing.signingpolicy import NO_POLICY, SigningPolicy
from mooring.identity import NODE_PREFIX
from mooring.pki.x509.canonicalnames import IPAddress, Name, canonical
from mooring.pki.x509.names import NO_NAMES, AlternativeNames
from mooring.pki.x509.profiles import BACKDATE, EXTENDED_USAGES, SERVER_AUTH, ttl
from mooring.pki.x509.signers import K3S_KUBELET_SERVING, K3S_LOCAL_NAMES, KUBELET_SERVING

LOCAL_NAMES = {KUBELET_SERVING: NO_NAMES, K3S_KUBELET_SERVING: K3S_LOCAL_NAMES}
"""Signers of nodes' serving certificates, each with the names of loopback that all of its certificates have."""
TOO_MANY_CERTIFIED = "TooManyCertifiedNames"
NAME_KINDS = (NODES, IDENTITIES, MACHINES, SERVICES, ENDPOINTS, CONFIG_MAPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedNames:
    """The issuance check."""

    server_names: Callable[[], Iterable[str]] = lambda: ()
    """Returns the names and addresses of the serving certificate of this server."""
    dns_suffixes: Sequence[str] = ()
    """Suffixes of DNS names that any node may have."""
    policy: Callable[[], SigningPolicy] = lambda: NO_POLICY
    signing_duration: timedelta
    trusts_source_address: bool = False
    """True when the API server records the address of each requester, as Mooring does."""
    name: str = "certified-names"
    watches: tuple[str, ...] = NAME_KINDS
    _holders: Holders = field(default_factory=Holders, repr=False, compare=False)
    _reserved: Reserved = field(default_factory=Reserved, repr=False, compare=False)
    _machines: MachineIndex = field(default_factory=MachineIndex, repr=False, compare=False)

    def check(self, pending: PendingIssue, views: Views) -> CheckResult | None:
        if not can_serve(pending.csr["spec"].get("usages") or ()):
            return None
        api_servers = {*map(canonical, self.server_names()), *self._reserved.api_servers(views, pending.now)}
        local = LOCAL_NAMES.get(pending.signer_name)
        if local is None:
            return self._of_server(pending, api_servers)
        evidence = self._evidence(pending, views, frozenset(api_servers))
        requested = pending.request.alternative_names
        identity = views[IDENTITIES].get(pending.node_name)
        recorded = certified_names_of(identity) if identity is not None else []
        known = _with_left(recorded, pending, local, evidence.reported) if _is_itself(pending, identity) else recorded
        refusal = judge_node(requested, evidence, local)
        if refusal is None or (refusal.outcome is RefusalEffect.HOLD and not pending.automatic):
            until = pending.now + ttl(
                pending.csr["spec"].get("expirationSeconds"), longest_life(pending, views, self.signing_duration)
            )
            return self._record(pending, known, local, evidence.reported, identity, until)
        left = (
            (Update(IDENTITIES, with_spec(identity, certifiedNames=known)),) if identity and known != recorded else ()
        )
        return Hold(refusal.reason, refusal.message, refusal.outcome is RefusalEffect.DENY, refusal.unresolved, left)

    def _of_server(self, pending: PendingIssue, api_servers: set[Name]) -> Hold | None:
        """Return a hold on a certificate of a signer that is not for nodes."""
        rule = self.policy().rule_for(pending)

        def allowed(name: Name) -> bool:
            return rule is not None and rule.names_in_full(name)

        refusal = judge_server(pending.request.common_name, pending.request.alternative_names, api_servers, allowed)
        return None if refusal is None else Hold(refusal.reason, refusal.message, denies=True)

    def _evidence(self, pending: PendingIssue, views: Views, api_servers: frozenset[Name]) -> NodeEvidence:
        name, now = pending.node_name, pending.now
        node, identity = views[NODES].get(name), views[IDENTITIES].get(name)
        is_for_machine = _is_for_machine(pending, identity, node)
        reported = node_addresses(node) if node is not None else frozenset()
        if pending.signer_name == K3S_KUBELET_SERVING:
            reported |= {*pending.request.alternative_names.ips}  # the machine states them in this request
        source = canonical(source_address_of(pending.csr))
        return NodeEvidence(
            node=name,
            reservations=Reservations(api_servers=api_servers, services=lambda one: self._reserved.service(one, views)),
            reported=reported,
            certified=held_names(identity, now) if is_for_machine else frozenset(),
            granted=self._granted(pending, identity, views) if is_for_machine else frozenset(),
            serves_api=_serves_api(node, reported, views) if is_for_machine else frozenset(),
            suffixes=self.dns_suffixes,
            proven=_addresses({source} if self.trusts_source_address else reported),
            resolved=pending.resolved,
            reporters=lambda one: self._holders.reporters(one, name, views, now),
            holders=lambda one: self._holders.holders(one, name, views, now),
        )

    def _granted(self, pending: PendingIssue, identity: Obj | None, views: Views) -> frozenset[Name]:
        """Return the names that an administrator has listed for a machine.

        An entry that asks for a proof counts once the machine has given it, and until the name changes hands.
        """
        node = pending.node_name
        return frozenset(
            canonical(text)
            for entry in self._machines.candidates(node, views[MACHINES])
            if spec_of(entry).get("nodeName") == node
            and counts_for_holder(entry, identity, pending, trusts_source_address=self.trusts_source_address)
            for text in serving_names_of(entry)
        )

    def _record(
        self,
        pending: PendingIssue,
        known: list[Obj],
        local: AlternativeNames,
        reported: frozenset[Name],
        identity: Obj | None,
        end: datetime,
    ) -> CheckResult | None:
        """Return the reservation that records the names in the identity; None when they are recorded until `end`, or later."""
        name, requested = pending.node_name, pending.request.alternative_names
        if identity is None and pending.password:
            # The check of the name creates the identity. The signer records the names.
            return None
        wanted = [
            text
            for text in dict.fromkeys((*map(str.lower, requested.dns), *map(str, requested.ips)))
            if text not in (*local.dns, *map(str, local.ips))
        ]
        until = {one.get("name", ""): one.get("notAfter", "") for one in known if not one.get("leftAt")}
        added: list[Obj] = []
        if not all(text in until and not has_passed(until[text], end) for text in wanted):
            # Names that a person approved are not marked as reported, so they stay until they expire.
            is_own = pending.automatic and _is_itself(pending, identity)
            own = {*map(str, _addresses(reported))} if is_own else ()
            said = {"reportedAt": _made(pending)}
            added = [
                {"name": text, "notAfter": rfc3339(end + BACKDATE)} | (said if text in own else {}) for text in wanted
            ]
        elif identity is None or known == certified_names_of(identity):
            return None
        replaced = {one["name"] for one in added}
        # No name is dropped before its certificate expires: another machine, or a Service, would get it then.
        kept = [
            one for one in known if one.get("name") not in replaced and not has_passed(one.get("notAfter"), pending.now)
        ]
        names = [*kept, *added]
        # Counted after expired names are dropped, so that a machine which changes names is not refused for old ones.
        if len(names) > MAX_CERTIFIED:
            return Hold(TOO_MANY_CERTIFIED, _too_many_certified(name, len(kept), len(added)))
        if identity is None:
            return Reservation((Create(IDENTITIES, new_identity(name, certifiedNames=names), must_be_new=True),))
        return Reservation((Update(IDENTITIES, with_spec(identity, certifiedNames=names)),))


def _with_left(
    recorded: list[Obj], pending: PendingIssue, local: AlternativeNames, reported: frozenset[Name]
) -> list[Obj]:
    """Return the names of a machine with a mark at each reported address that it has left, as its own request says.

    By k3s's way the request states all addresses. The Node of a machine that was off has former ones a moment longer.
    """
    here = {*pending.request.alternative_names.ips} - {*local.ips}
    present = here if pending.signer_name == K3S_KUBELET_SERVING else reported
    if not here or not here <= reported:
        return recorded
    made = _made(pending)
    return [
        one | {"leftAt": made}
        if (one.get("reportedAt") or made) < made and not one.get("leftAt") and canonical(one["name"]) not in present
        else one
        for one in recorded
    ]


def _made(pending: PendingIssue) -> str:
    """Return when the machine made the request: now for one that is not stored yet."""
    return pending.csr["metadata"].get("creationTimestamp") or rfc3339(pending.now)


def _too_many_certified(node: str, present: int, added: int) -> str:
    return (
        f'Node "{node}" has unexpired certificates for {present} names and addresses, and {added} more would be above '
        f"{MAX_CERTIFIED}; it is checked again when some have ended. If the certificates are gone, remove their names from "
        f"spec.certifiedNames (kubectl edit nodeidentity {node})"
    )


def can_serve(usages: Iterable[str]) -> bool:
    """Return true unless the certificate has purposes, and none of them is that of a server."""
    purposes = {usage for usage in usages if usage in EXTENDED_USAGES}
    return not purposes or not purposes.isdisjoint((SERVER_AUTH, "any", "microsoft sgc", "netscape sgc"))


def _serves_api(node: Obj | None, reported: frozenset[Name], views: Views) -> frozenset[Name]:
    """Return the own name of a Node and its addresses of API servers, if an administrator has labelled it as one of them."""
    labels = (node["metadata"].get("labels") or {}) if node is not None else {}
    if node is None or CONTROL_PLANE not in labels:
        return frozenset()
    return reported & {*own_addresses(views)} | {canonical(node["metadata"]["name"])}


def _is_for_machine(pending: PendingIssue, identity: Obj | None, node: Obj | None) -> bool:
    """Return true when the certificate goes to the machine that has the name, or that may have it.

    The approvers and the check of the name see to it, where no person has approved the request. A person may approve one of any
    requester, under any name.
    """
    if pending.username == NODE_PREFIX + pending.node_name:
        return True
    if pending.automatic:
        return not pending.defers_password
    if pending.signer_name != K3S_KUBELET_SERVING:
        return False
    spec = spec_of(identity) if identity is not None else {}
    recorded = spec.get("nodePasswordUID", "")
    is_free = node is None and not recorded and (not spec.get("keys") or was_deleted(identity, node))
    return is_free or _is_itself(pending, identity)


def _is_itself(pending: PendingIssue, identity: Obj | None) -> bool:
    """Return true when the machine that has the name makes the request: it proves its key, or its node password."""
    if pending.username == NODE_PREFIX + pending.node_name:
        return True
    recorded = spec_of(identity).get("nodePasswordUID", "") if identity is not None else ""
    return bool(recorded and recorded == pending.password)


def _addresses(names: Iterable[Name]) -> frozenset[IPAddress]:
    return frozenset(one for one in names if not isinstance(one, str))
