"""Gate of names: which DNS names and addresses a certificate of a server may carry.

Every signer whose certificates can serve calls it, before the approval and before the signature. It is pure: a door gathers
the evidence (`check.py`) and judges nothing itself.

Rules kept here:
* Names are compared in canonical form (`canonicalnames`). What has no canonical form is denied.
* A machine serves itself on loopback, and a server of the API listens there, too: a server that is not a node gets its names only
  where the policy names them in full.
* Names that belong to no machine (loopback, `localhost`, Services) are denied. Names of API servers and of existing Services are
  reserved, and those that Services have in another domain: they are held until an administrator grants them to the machine. Neither
  is signed after the approval of a person.
* The own name of a node that it has a certificate for stays its own, although a Service is given that name later.
* A name or address that another identity has is held, unless the same identity has a certificate for it already, and the other has
  none.
* What a node says of itself is proof for its own name and for its addresses. A further DNS name needs an unexpired certificate of
  the same identity, an entry of the inventory, a suffix that the administrator gave, or the DNS. It is held until then, or until
  a person approves the request.
* The DNS is proof when every address of the answer is one of the node's, and one of them is proven.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from mooring.errors import quoted
from mooring.pki.x509.canonicalnames import IPAddress, Name, address_fault, canonical, canonical_address, name_fault
from mooring.pki.x509.names import NO_NAMES, AlternativeNames
from mooring.pki.x509.profiles import SERVICE_NAMES

MAX_NAMES = 32
"""Names and addresses of one request of a node. A Node has about five; the limit bounds the work, and the lookups, for one."""
MAX_SERVER_NAMES = 1000
"""Names and addresses of a request for another signer. Each is compared; more take longer than other work may wait."""
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
"""Label of a Node whose machine runs an API server, too. kubeadm sets it with the rights of an administrator, and no node may."""
_LOOPBACK = frozenset(
    {
        "localhost",
        "localhost.localdomain",
        "localhost4",
        "localhost4.localdomain4",
        "localhost6",
        "localhost6.localdomain6",
        "ip6-localhost",
        "ip6-loopback",
    }
)
_OF_NO_MACHINE = frozenset({*SERVICE_NAMES, *_LOOPBACK})
_END_OF_LOOPBACK = ".localhost"
_ENDS_OF_NO_MACHINE = (".svc", ".svc.cluster.local", _END_OF_LOOPBACK)
_SHOWN = 5
"""Names in a message."""


class RefusalEffect(StrEnum):
    """Effect of a verdict that does not allow a certificate."""

    HOLD = "hold"
    """More evidence, or a person, may allow the certificate."""
    RESERVED = "reserved"
    """An administrator may grant the name to the machine. The approval of the request by a person is not enough."""
    DENY = "deny"
    """Nothing can allow the certificate."""


REASONS: Mapping[str, RefusalEffect] = MappingProxyType(
    {
        "TooManyNames": RefusalEffect.DENY,
        "InvalidName": RefusalEffect.DENY,
        "WildcardName": RefusalEffect.DENY,
        "InvalidAddress": RefusalEffect.DENY,
        "ReservedName": RefusalEffect.DENY,
        "AddressOfControlPlane": RefusalEffect.RESERVED,
        "NameOfService": RefusalEffect.RESERVED,
        "AddressOfAnotherNode": RefusalEffect.HOLD,
        "AddressNotOfNode": RefusalEffect.HOLD,
        "NameNotOfNode": RefusalEffect.HOLD,
    }
)
"""Reason codes of refusals, each with its effect."""


@dataclass(frozen=True, slots=True)
class NameRefusal:
    """A verdict that does not allow the certificate."""

    reason: str
    message: str
    unresolved: tuple[str, ...] = ()
    """DNS names whose addresses may change the verdict."""

    @property
    def outcome(self) -> RefusalEffect:
        return REASONS[self.reason]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservations:
    """Names and addresses that no machine may be certified for by itself."""

    api_servers: Collection[Name] = frozenset()
    """Names and addresses of every serving certificate in force, and every published one."""
    services: Callable[[Name], str] = lambda name: ""
    """Returns the Service that has the name or the address; "" when none has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvidence:
    """Facts about a node and the names that it requests."""

    node: str
    reservations: Reservations
    reported: frozenset[Name] = frozenset()
    """Names and addresses that the node says are its own."""
    certified: Collection[Name] = frozenset()
    """Names and addresses of unexpired certificates of the same identity."""
    granted: Collection[Name] = frozenset()
    """Names and addresses that an administrator has listed for this machine."""
    serves_api: Collection[Name] = frozenset()
    """Addresses of API servers that run on the machine of the node, as an administrator has said."""
    suffixes: Sequence[str] = ()
    """Suffixes of DNS names that any node may have."""
    proven: Collection[IPAddress] = frozenset()
    """Addresses that the node proved by more than its own word, such as that from which it made the request."""
    resolved: Mapping[str, frozenset[IPAddress]] = field(default_factory=lambda: MappingProxyType({}))
    """Addresses of DNS names, once they were resolved."""
    reporters: Callable[[Name], Collection[str]] = lambda name: ()
    """Returns the other nodes that have the name, report it, or have an unexpired certificate for it."""
    holders: Callable[[Name], Collection[str]] = lambda name: ()
    """Returns those of `reporters` that have an unexpired certificate for it, or whose name it is."""


def judge_node(
    requested: AlternativeNames, evidence: NodeEvidence, local: AlternativeNames = NO_NAMES
) -> NameRefusal | None:
    """Return why a node may not have a certificate for these names; None when it may.

    `local` are names of loopback that every certificate of the signer has. The name of the node itself is never one of them.
    """
    if len(requested.dns) + len(requested.ips) > MAX_NAMES + len(local.dns) + len(local.ips):
        return _too_many(MAX_NAMES)
    lowered = (name.lower() if name.isascii() else name for name in requested.dns)
    dns = tuple(dict.fromkeys(name for name in lowered if name not in local.dns))
    if evidence.node in local.dns:
        dns = (evidence.node, *dns)
    ips = tuple(dict.fromkeys(address for address in requested.ips if address not in local.ips))
    return (
        # What nothing can allow comes first, and what only an administrator can grant comes second: a verdict that a
        # person may overrule must not hide either.
        next(_formal((*dns, *ips)), None)
        or next(_reserved((*dns, *ips), evidence), None)
        or next(_claimed((*dns, *ips), evidence), None)
        or _foreign_addresses(ips, evidence)
        or _unproven_names(dns, evidence)
    )


def judge_server(
    common_name: str, requested: AlternativeNames, api_servers: Collection[Name], allowed: Callable[[Name], bool]
) -> NameRefusal | None:
    """Return why a certificate of a server that is not a node may not be issued; None when it may.

    `allowed` returns true for a name of an API server that the policy of the operator names in full. The common name is judged,
    too: some verifiers compare it when a certificate has no DNS name.
    """
    if len(requested.dns) + len(requested.ips) > MAX_SERVER_NAMES:
        return _too_many(MAX_SERVER_NAMES)
    for name in requested.dns:
        if fault := name_fault(name.removeprefix("*.")):
            return NameRefusal("InvalidName", f"{quoted(name)} {fault}")
    for address in requested.ips:
        if fault := address_fault(address):
            return NameRefusal("InvalidAddress", f"{address} {fault}")
    reserved = (*SERVICE_NAMES, *api_servers)
    for wanted in dict.fromkeys((*map(str.lower, requested.dns), canonical(common_name), *requested.ips)):
        if (_is_loopback(wanted) or any(_covers(wanted, name) for name in reserved)) and not allowed(wanted):
            return NameRefusal(
                "AddressOfControlPlane",
                f"{quoted(str(wanted))}: clients reach the API server there, and only a rule of the signing policy that names it "
                "in full, without *, allows it",
            )
    return None


def _formal(names: Iterable[Name]) -> Iterator[NameRefusal]:
    """Yield refusals of what no machine can be certified for."""
    for name in names:
        if not isinstance(name, str):
            if fault := address_fault(name):
                yield NameRefusal("InvalidAddress", f"{name} {fault}")
            elif name.is_loopback:
                yield NameRefusal("ReservedName", f"{name}: each machine has this address of loopback")
        elif "*" in name:
            yield NameRefusal("WildcardName", f"{quoted(name)}: a node has no wildcard names")
        elif fault := name_fault(name):
            yield NameRefusal("InvalidName", f"{quoted(name)} {fault}")
        elif name in _OF_NO_MACHINE or name.endswith(_ENDS_OF_NO_MACHINE):
            yield NameRefusal("ReservedName", f"{quoted(name)} is a name of a Service or of loopback, not of a machine")


def _reserved(names: Iterable[Name], evidence: NodeEvidence) -> Iterator[NameRefusal]:
    """Yield refusals of names of API servers and Services, apart from those that an administrator granted to the machine."""
    reservations = evidence.reservations
    for name in names:
        if name in evidence.granted or name in evidence.serves_api:
            continue
        if name in reservations.api_servers:
            yield NameRefusal(
                "AddressOfControlPlane",
                f"{name}: clients reach the API server there. If the machine of Node {quoted(evidence.node)} runs an API server, "
                f"list the name in its inventory entry (mooring machine authorize {evidence.node} --serving-name {name}), or label "
                f"the Node with {CONTROL_PLANE}; approving the request is not enough",
            )
        elif service := _service(name, evidence):
            yield NameRefusal(
                "NameOfService",
                f"{name}: clients reach the Service {service} there. Rename one of them, or list the name in the inventory entry "
                f"of the machine (mooring machine authorize {evidence.node} --serving-name {name}); approving the request is not "
                "enough",
            )


def _service(name: Name, evidence: NodeEvidence) -> str:
    """Return the Service that clients reach by a name or an address; "" when it is that of none.

    A name of the form SERVICE.NAMESPACE.svc.DOMAIN belongs to a Service in every domain, as the cluster's is not always known.
    """
    if isinstance(name, str) and "svc" in (labels := name.split("."))[2:]:
        return f"{labels[1]}/{labels[0]}"
    if name == evidence.node and name in evidence.certified:
        return ""
    return evidence.reservations.services(name)


def _too_many(limit: int) -> NameRefusal:
    return NameRefusal("TooManyNames", f"more than {limit} names and addresses are in one request")


def _claimed(names: Iterable[Name], evidence: NodeEvidence) -> Iterator[NameRefusal]:
    """Yield refusals of names that another identity has."""
    for name in names:
        if others := _others(name, evidence):
            listed = ", ".join(sorted(others)[:_SHOWN])
            if not isinstance(name, str) and set(others) <= set(evidence.holders(name)):
                explanation = (
                    f"a certificate of Node {listed} for it has not ended, whatever that Node reports now; approve the request if "
                    "this machine has the address now, or delete the other Node if its machine is gone (kubectl delete node)"
                )
            else:
                explanation = (
                    f"Node {listed} has it, too; correct the addresses, or delete the Node that is gone (kubectl delete node), or "
                    "approve the request"
                )
            yield NameRefusal("AddressOfAnotherNode", f"{name}: {explanation}")


def _others(name: Name, evidence: NodeEvidence) -> Collection[str]:
    return evidence.holders(name) if name in evidence.certified else evidence.reporters(name)


def _foreign_addresses(ips: Iterable[IPAddress], evidence: NodeEvidence) -> NameRefusal | None:
    foreign = [one for one in ips if one not in evidence.reported and not _is_known(one, evidence)]
    if not foreign:
        return None
    return NameRefusal(
        "AddressNotOfNode",
        f"{_listed(foreign)}: not among status.addresses of Node {quoted(evidence.node)}; it is checked again when they change",
    )


def _unproven_names(dns: Iterable[str], evidence: NodeEvidence) -> NameRefusal | None:
    further = [
        name
        for name in dns
        if name != evidence.node and not _is_known(name, evidence) and not _has_suffix(name, evidence.suffixes)
    ]
    strange = [
        name for name in further if "." not in name or (name in evidence.resolved and not _is_proved(name, evidence))
    ]
    pending = [name for name in further if "." in name and name not in evidence.resolved]
    if not strange and not pending:
        return None
    return NameRefusal(
        "NameNotOfNode",
        f"{_listed(strange or pending)}: the word of Node {quoted(evidence.node)} is proof for its own name only. The DNS must "
        "have the name for addresses of the Node, one of which makes the request; or list it in the inventory entry of the "
        f"machine (mooring machine authorize {evidence.node} --serving-name NAME), give its suffix with --node-dns-suffixes, or "
        "approve the request",
        unresolved=() if strange else tuple(pending),
    )


def _is_known(name: Name, evidence: NodeEvidence) -> bool:
    return name in evidence.certified or name in evidence.granted or name in evidence.serves_api


def _is_proved(name: str, evidence: NodeEvidence) -> bool:
    """Return true when the DNS knows the name for addresses of the node alone, one of which is proven."""
    answer = frozenset(map(canonical_address, evidence.resolved[name]))
    return not answer.isdisjoint(evidence.proven) and all(_is_own(address, evidence) for address in answer)


def _is_own(address: IPAddress, evidence: NodeEvidence) -> bool:
    return (
        (address in evidence.reported or _is_known(address, evidence))
        and next(_reserved((address,), evidence), None) is None
        and not _others(address, evidence)
    )


def _has_suffix(name: str, suffixes: Iterable[str]) -> bool:
    return any(name.endswith(f".{suffix}") for suffix in suffixes)


def _covers(wanted: Name, reserved: Name) -> bool:
    """Return true when a certificate for `wanted`, which may have wildcards, passes as `reserved`.

    A wildcard stands for any characters here, as no verifier takes more: OpenSSL takes one within a label, also of a common name.
    """
    if wanted == reserved:
        return True
    if not isinstance(wanted, str) or not isinstance(reserved, str) or "*" not in wanted:
        return False
    begin, end = wanted.partition("*")[0], wanted.rpartition("*")[2]
    return reserved.startswith(begin) and reserved.endswith(end)


def _is_loopback(name: Name) -> bool:
    """Return true for a name or an address of loopback, and for a wildcard that stands for such a name (RFC 6761 6.3)."""
    if not isinstance(name, str):
        return name.is_loopback
    return name.endswith(_END_OF_LOOPBACK) or any(_covers(name, one) for one in _LOOPBACK)


def _listed(names: Iterable[Name]) -> str:
    texts = list(map(str, names))
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more
