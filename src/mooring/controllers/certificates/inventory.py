"""Inventory of authorized machines: which entry a request of a joining machine uses, and the claim that uses it once.

Rules kept here:
* Requests for a client certificate by a node itself, and by a machine that recovers its own name, need no entry: they proved the
  name before.
* An entry fits when its node name does, the source address is within its networks, and the request has the key, the proof of the
  code and the facts that it names. An entry that names neither key nor code fits by name alone, and does not **authorize**: it
  needs another approval.
* A request that lacks nothing but the facts is told so, with its own facts. Those of the entry are not repeated.
* A used entry fits the key that used it and no other. The claim is an update with the resourceVersion of the plan: of two requests
  one is refused, and planned again.
* What an entry with a key or a code grants, it grants to the machine that proved it, until the name changes hands
  (`counts_for_holder`). The same key that proves it again claims it again. One without grants in requests from its networks.
* With `--machine-inventory=required` a request without a fitting entry waits for a person. A person may approve any machine.
* A machine that joins by k3s's way uses its entry with the client certificate of its kubelet. Its serving certificate comes before,
  with another key, and claims the name by the node password. Where entries are required, it therefore needs an unused entry of the
  name and the network that names neither key nor code: the request proves neither. A machine that has joined proves its node
  password. The certificates that k3s shares among machines are for machines that have joined (`name-ownership`).
* Another API server lets its clients write the address of a request. There no request comes from a network of an entry.
* The signer repeats the check: an entry that was removed between approval and signature stops an automatic approval.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

from mooring.api.certificates.requestrecords import source_address_of
from mooring.api.core.addresses import parse_address
from mooring.api.mooring.authorizedmachine import PLURAL, used_by
from mooring.api.mooring.membership import changed_at, is_of_holder
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.api.mooring.nodeidentity import keys_of
from mooring.api.objectmeta import spec_of
from mooring.api.view import View, ViewFollower, Views, readable
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.controllers.actions import Update
from mooring.controllers.certificates.issuance import CheckResult, Hold, PendingIssue, Reservation
from mooring.controllers.certificates.noderecovery import is_recovery
from mooring.identity import NODE_PREFIX
from mooring.pki.keys import public_key_der
from mooring.pki.x509.signers import K3S_KUBELET_CLIENT, K3S_KUBELET_SERVING, KUBE_APISERVER_CLIENT_KUBELET
from mooring.trust.bootstraptoken.restrictions import matches, parse_networks
from mooring.trust.nodename import is_proven
from mooring.trust.requestfacts import facts_that_differ

NOT_LISTED = "MachineNotListed"
ALREADY_USED = "MachineAlreadyUsed"


class MachineIndex:
    """Entries by exact node name, and those with a pattern, kept up to date from their view."""

    __slots__ = ("_by_name", "_follower", "_of", "_patterns")

    def __init__(self) -> None:
        self._follower = ViewFollower()
        self._of: dict[str, str] = {}
        self._by_name: dict[str, set[str]] = {}
        self._patterns: set[str] = set()

    def candidates(self, node_name: str, view: View) -> Iterator[Obj]:
        """Yield the entries whose node name is or matches `node_name`, in the order of their names.

        An entry that cannot be read authorizes none, and stops no machine that does not need it. One that was deleted, and that
        finalizers hold, authorizes none either.
        """
        view = readable(view)
        self._follow(view)
        found = self._by_name.get(node_name, set()) | {
            one for one in self._patterns if matches(self._of[one], node_name)
        }
        for name in sorted(found):
            entry = view.get(name)
            if entry is not None and not entry["metadata"].get("deletionTimestamp"):
                yield entry

    def _follow(self, view: View) -> None:
        changes = self._follower.changes(view)
        if changes is None:
            return
        start_over, changed = changes
        if start_over:
            self._of, self._by_name, self._patterns = {}, {}, set()
        for (_, name), entry in changed:
            self._put(name, entry)

    def _put(self, name: str, entry: Obj | None) -> None:
        before = self._of.pop(name, None)
        if before is not None:
            self._patterns.discard(name)
            self._by_name.get(before, set()).discard(name)
            if not self._by_name.get(before, True):
                del self._by_name[before]
        if entry is None:
            return
        wanted = self._of[name] = str(spec_of(entry).get("nodeName", ""))
        if "*" in wanted:
            self._patterns.add(name)
        else:
            self._by_name.setdefault(wanted, set()).add(name)


@dataclass(frozen=True, slots=True)
class Match:
    """Entries that a request fits. `entry` is the best free one; `used` one that another key has used.

    `differing` is one that would let it in if it had other facts.
    """

    entry: Obj | None
    used: Obj | None = None
    differing: Obj | None = None

    @property
    def authorizes(self) -> bool:
        """True when the machine proved a key or a code that the entry names."""
        spec = spec_of(self.entry) if self.entry is not None else {}
        return bool(spec.get("keyFingerprint") or spec.get("codeVerifier"))


@dataclass(frozen=True, slots=True)
class MachineInventory:
    """The issuance check. `required`: every joining machine needs an entry."""

    required: bool = False
    trusts_source_address: bool = False
    """True when the API server itself records the address of each requester, as Mooring does."""
    name: str = "machine-inventory"
    watches: tuple[str, ...] = (PLURAL, IDENTITIES)
    _index: MachineIndex = field(default_factory=MachineIndex, repr=False, compare=False)

    def check(self, pending: PendingIssue, views: Views) -> CheckResult | None:
        if not concerns(pending):
            return self._beside(pending, views) if self.required and pending.automatic else None
        match = self.match(pending, views)
        if match.entry is None:
            return _missing(pending, match) if self.required and pending.automatic else None
        identity = views[IDENTITIES].get(node_name_of(pending))
        is_due = (
            self.required or match.authorizes
            if used_by(match.entry) is None
            else _is_from_before(match.entry, identity)
        )
        return Reservation((_claim(match.entry, pending, changed_at(identity)),)) if is_due else None

    def _beside(self, pending: PendingIssue, views: Views) -> Hold | None:
        """Return a hold on a certificate that a machine which needs an entry requests beside its client certificate."""
        if pending.signer_name != K3S_KUBELET_SERVING or pending.username == f"{NODE_PREFIX}{pending.node_name}":
            return None
        if _has_joined(pending, views):
            return None
        entries = tuple(self._index.candidates(pending.node_name, views[PLURAL]))
        if any(_is_free_by_name(entry) and self._is_within(entry, pending) for entry in entries):
            return None
        return _missing(pending, Match(None, next((entry for entry in entries if used_by(entry) is not None), None)))

    def match(self, pending: PendingIssue, views: Views) -> Match:
        """Return the entry that the request fits: one that its key has used, else one that authorizes, else a name."""
        key, name = _key(pending), node_name_of(pending)
        mine = free = listed = taken = differing = None
        for entry in self._index.candidates(name, views[PLURAL]):
            if not (self._is_within(entry, pending) and _is_proven_for(entry, pending, key, name)):
                continue
            use, is_said = used_by(entry), not _differences(entry, pending)
            if use is not None and use.get("publicKey") != key:
                taken = taken or (entry if is_said else None)
            elif not is_said:
                differing = differing or (entry if self.required or Match(entry).authorizes else None)
            elif use is not None:
                mine = mine or entry
            elif Match(entry).authorizes:
                free = free or entry
            else:
                listed = listed or entry
        return Match(mine or free or listed, taken, differing)

    def explained(self, hold: Hold, pending: PendingIssue, views: Views) -> Hold:
        """Return the hold, preceded by the facts for which an entry does not let in the request that it would fit otherwise."""
        match = self.match(pending, views) if concerns(pending) else Match(None)
        if hold.denies or match.authorizes or match.differing is None:
            return hold
        facts = (
            f'{name} "{value}"' if value else f"no {name}"
            for name, value in sorted(_differences(match.differing, pending).items())
        )
        entry = match.differing["metadata"]["name"]
        text = f'the authorized machine "{entry}" requires other facts: the request has {", ".join(facts)}'
        return replace(hold, message=f"{text}; {hold.message}")

    def _is_within(self, entry: Obj, pending: PendingIssue) -> bool:
        return is_within(entry, pending, trusts_source_address=self.trusts_source_address)


def concerns(pending: PendingIssue) -> bool:
    """Return true for a request of a machine that joins."""
    return (
        pending.signer_name in (KUBE_APISERVER_CLIENT_KUBELET, K3S_KUBELET_CLIENT)
        and pending.username != pending.request.common_name
        and not is_recovery(pending.csr)
    )


def counts_for_holder(entry: Obj, identity: Obj | None, pending: PendingIssue, *, trusts_source_address: bool) -> bool:
    """Return true for an entry that is for the machine that has the name now. One without a proof counts in requests from its
    networks."""
    if not is_for_holder(entry, identity):
        return False
    return Match(entry).authorizes or is_within(entry, pending, trusts_source_address=trusts_source_address)


def is_for_holder(entry: Obj, identity: Obj | None) -> bool:
    """Return true for an entry that asks for no proof, or whose key or code the machine that has the name now has proved."""
    if not Match(entry).authorizes:
        return True
    use = used_by(entry) or {}
    return use.get("nodeName") == spec_of(entry).get("nodeName") and _is_of_holder(use, identity)


def _is_of_holder(use: Obj, identity: Obj | None) -> bool:
    return is_of_holder(use.get("publicKey", ""), use.get("time"), identity)


def _is_from_before(entry: Obj, identity: Obj | None) -> bool:
    """Return true for an entry that was used before the name changed hands."""
    return changed_at(identity) is not None and not _is_of_holder(used_by(entry) or {}, identity)


def node_name_of(pending: PendingIssue) -> str:
    return pending.node_name or pending.request.common_name


def _key(pending: PendingIssue) -> str:
    return f"sha256:{pending.request.key_fingerprint}"


def _differences(entry: Obj, pending: PendingIssue) -> dict[str, str]:
    return facts_that_differ(pending.csr, spec_of(entry).get("requestAnnotations") or {})


def _is_proven_for(entry: Obj, pending: PendingIssue, key: str, node_name: str) -> bool:
    """Return true when the request has the key and the proof of the code that the entry names."""
    spec = spec_of(entry)
    fingerprint, verifier = spec.get("keyFingerprint"), spec.get("codeVerifier")
    if fingerprint and fingerprint != key:
        return False
    if not verifier:
        return True
    request = pending.request
    return is_proven(verifier, request.challenge_password, node_name, public_key_der(request.public_key))


def _is_free_by_name(entry: Obj) -> bool:
    """Return true for an entry that no machine has used, and that needs no proof of a key or a code, and no fact in the request."""
    spec = spec_of(entry)
    return used_by(entry) is None and not any(
        spec.get(name) for name in ("keyFingerprint", "codeVerifier", "requestAnnotations")
    )


def _has_joined(pending: PendingIssue, views: Views) -> bool:
    """Return true when the requester proved the node password of a machine that has a client certificate."""
    identity = views[IDENTITIES].get(pending.node_name)
    if identity is None or not pending.password or not keys_of(identity):
        return False
    return bool(spec_of(identity).get("nodePasswordUID") == pending.password)


def is_within(entry: Obj, pending: PendingIssue, *, trusts_source_address: bool) -> bool:
    """Return true when the request comes from a network of the entry, or the entry has none."""
    networks = [network for text in spec_of(entry).get("allowedCIDRs") or () for network in parse_networks(text)]
    if not networks:
        return True
    address = parse_address(source_address_of(pending.csr)) if trusts_source_address else None
    address = getattr(address, "ipv4_mapped", None) or address
    return address is not None and any(address in network for network in networks)


def _claim(entry: Obj, pending: PendingIssue, changed: datetime | None) -> Update:
    """Return the claim of an entry. It is from after the change of the name, also by a clock that is slow."""
    use = {
        "publicKey": _key(pending),
        "nodeName": node_name_of(pending),
        "request": pending.csr["metadata"]["name"],
        "time": rfc3339(max(pending.now, changed or pending.now)),
    }
    return Update(PLURAL, {**entry, "status": {**(entry.get("status") or {}), "usedBy": use}})


def _missing(pending: PendingIssue, match: Match) -> Hold:
    name = node_name_of(pending)
    if match.used is not None:
        entry, use = match.used["metadata"]["name"], used_by(match.used) or {}
        return Hold(
            ALREADY_USED,
            f'the authorized machine "{entry}" was used by the key {use.get("publicKey")}; if the machine was installed again, '
            "remove the entry and authorize it again",
        )
    return Hold(
        NOT_LISTED,
        f'no authorized machine fits node "{name}", key {_key(pending)} and the address of the request: mooring machine '
        f"authorize {name} --key-fingerprint {_key(pending)}",
    )
