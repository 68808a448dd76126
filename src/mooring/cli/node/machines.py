"""Machines of a cluster, as their Nodes and NodeIdentities show them.

Rules kept here:
* A machine has a Node, or a NodeIdentity whose Node was deleted or never registered. With another Kubernetes API server, or for a
  user who may not read NodeIdentities, only Nodes are known.
* The certificate of a machine is the one that ends last of those that the server accepts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from mooring.api.meta.printcolumns import spec_of
from mooring.api.mooring.membership import NODES, has_ended, is_terminating
from mooring.apimachinery.schema import Obj
from mooring.cli.certs import inventory
from mooring.cli.certs.inventory import VALID, Inventory, KnownCertificate
from mooring.client.cluster import ClusterClient
from mooring.client.serverversion import NotMooringError
from mooring.clock import human_duration, parse_rfc3339
from mooring.errors import ForbiddenError

READY, NOT_READY, LOST, DELETING, NO_NODE, ENDED = "Ready", "NotReady", "Lost", "Deleting", "NoNode", "Ended"
"""States of a machine. Lost: nothing was heard of it for the grace period of its heartbeat. NoNode: a member that registered no
Node. Ended: its Node was deleted, and the server rejects its certificate."""
NEVER_REGISTERED = "a certificate was issued for this name, and no machine has registered its Node"
STATES = (READY, NOT_READY, LOST, DELETING, NO_NODE, ENDED)


@dataclass(frozen=True, slots=True)
class KnownMachine:
    """One machine."""

    name: str
    node: Obj | None
    identity: Obj | None
    certificates: Sequence[KnownCertificate] = ()

    @property
    def state(self) -> str:
        """One of STATES."""
        if self.node is None:
            return ENDED if has_ended(self.identity, None) else NO_NODE
        if is_terminating(self.node):
            return DELETING
        ready = self.ready.get("status")
        return READY if ready == "True" else NOT_READY if ready == "False" else LOST

    @property
    def ready(self) -> Mapping[str, Any]:
        """The condition Ready of the Node, empty without one."""
        conditions = ((self.node or {}).get("status") or {}).get("conditions") or []
        return next((one for one in conditions if one.get("type") == "Ready"), {})

    @property
    def message(self) -> str:
        """Explanation of the state, "" for most machines."""
        return NEVER_REGISTERED if self.state == NO_NODE else str(self.ready.get("message") or "")

    @property
    def certificate(self) -> KnownCertificate | None:
        """The certificate in use; None where none is known that the server accepts."""
        accepted = [one for one in self.certificates if one.state == VALID]
        return max(accepted, key=lambda one: one.expires, default=None)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses that the Node reports."""
        found = ((self.node or {}).get("status") or {}).get("addresses") or []
        return tuple(one["address"] for one in found if one.get("address") and one.get("type") != "Hostname")

    @property
    def created(self) -> str:
        """When the Node was made, else the record of its name."""
        made: str = (self.node or self.identity or {"metadata": {}})["metadata"].get("creationTimestamp", "")
        return made

    def document(self) -> dict[str, Any]:
        """Return the machine for JSON and YAML. Empty fields are left out."""
        spec = spec_of(self.identity) if self.identity is not None else {}
        found = {
            "name": self.name,
            "state": self.state,
            "message": self.message,
            "addresses": list(self.addresses),
            "nodeUID": (self.node or {"metadata": {}})["metadata"].get("uid", ""),
            "created": self.created,
            "token": spec.get("token", ""),
            "from": spec.get("sourceAddress", ""),
            "certificates": [one.document() for one in self.certificates],
        }
        return {key: value for key, value in found.items() if value}


async def fetch(
    client: ClusterClient, now: datetime, *, with_lineage: bool = True
) -> tuple[tuple[KnownMachine, ...], Inventory]:
    """Return the machines by name, and the inventory that was read. Raises ApiError, PeerError."""
    nodes = {one["metadata"]["name"]: one for one in (await client.list(NODES)).items}
    try:
        known = await inventory.fetch(client, with_lineage=with_lineage)
    except (NotMooringError, ForbiddenError):
        known = Inventory(identities=(), entries=(), nodes=tuple(nodes.values()))
    identities = {one["metadata"]["name"]: one for one in known.identities}
    certificates: dict[str, list[KnownCertificate]] = {}
    for one in known.certificates(now):
        certificates.setdefault(one.node, []).append(one)
    names = sorted(nodes.keys() | identities.keys())
    return tuple(
        KnownMachine(name, nodes.get(name), identities.get(name), certificates.get(name, ())) for name in names
    ), known


def until(text: str, now: datetime) -> str:
    """Return how long a moment is away, as `in 3d` or `3d ago`; `<unknown>` without one."""
    if not text:
        return "<unknown>"
    left = parse_rfc3339(text) - now
    return f"in {human_duration(left)}" if left > timedelta(0) else f"{human_duration(-left)} ago"


def age(text: str, now: datetime) -> str:
    """Return how long ago a moment was."""
    return human_duration(now - parse_rfc3339(text)) if text else "<unknown>"
