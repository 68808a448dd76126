"""node-identity-controller: keeps the record of each Node in its NodeIdentity, and deletes identities that no machine can use.

Rules kept here:
* A machine that may create its Node again (`--node-deletion=reregisters`) and did so has a new Node: the record of the old one is
  removed. A change of the setting changes the records of deleted Nodes.
* A Mooring server records the uid of a Node when it is deleted. Another API server does not, so that the controller records it when
  the Node appears. Such a server lets machines create their Nodes again.
* A NodeIdentity is deleted once no Node has its name and the newest certificate ended KEPT_FOR ago. Until then a machine may come
  back with the expired certificate. The clock must have said so for a day (`mooring.controllers.overdue`).
* One without keys is kept as long as a certificate of the cluster lives. It stays when it records a deleted Node: what it keeps out
  was made by hand, and its end is unknown. So does one whose machine had such a certificate (`formerCertificate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from mooring.api.meta.printcolumns import spec_of
from mooring.api.mooring.membership import is_terminating, was_deleted, with_node_recorded, with_spec
from mooring.api.mooring.nodeidentity import PLURAL, keys_of
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339
from mooring.controllers.actions import Action, Delete, Entropy, Key, Requeue, Update
from mooring.controllers.overdue import Overdue

NODES = "nodes"
KEPT_FOR = timedelta(days=365)
"""Time for which an expired name is remembered: longer than machines are off."""


@dataclass(frozen=True, slots=True)
class NodeIdentityController:
    """Keeps NodeIdentities."""

    signing_duration: timedelta
    deletion_ends_membership: bool = True
    records_nodes: bool = False
    """True where the API server does not record deletions itself."""
    name: str = "node-identity-controller"
    watches: tuple[str, ...] = (PLURAL, NODES)
    _overdue: Overdue = field(default_factory=Overdue, repr=False, compare=False)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        """Plan for a changed identity, and for that of a Node which is gone, or which may need another record."""
        if plural == PLURAL:
            needed = not deleted
        else:
            identity = views[PLURAL].get(obj["metadata"]["name"])
            recorded = identity is not None and bool(spec_of(identity).get("nodeUID"))
            needed = deleted or self.records_nodes or recorded
        return (("", obj["metadata"]["name"]),) if needed else ()

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        identity, node = views[PLURAL].get(key[1]), views[NODES].get(key[1])
        if identity is None:
            self._overdue.forget(key)
            return ()
        updated = self._with_record(identity, node)
        if updated is not None:
            return (Update(PLURAL, updated),)
        due = self._due(identity)
        if due is None or node is not None:
            return ()
        deletable = self._overdue.deletable_at(key, due, now)
        return (Delete.of(PLURAL, identity),) if deletable <= now else (Requeue(deletable),)

    def _with_record(self, identity: Obj, node: Obj | None) -> Obj | None:
        """Return the identity with the record that it should have of the Node; None when it has that one."""
        if self.records_nodes:
            return with_node_recorded(identity, node, reregisters=True) if node is not None else None
        if not was_deleted(identity, node):
            return None
        reregisters = bool(spec_of(identity).get("reregisters"))
        if reregisters and node is not None and not is_terminating(node):
            return with_spec(identity, nodeUID="", reregisters=False, changedAt="")
        if reregisters is self.deletion_ends_membership:
            return with_spec(identity, reregisters=not self.deletion_ends_membership)
        return None

    def _due(self, identity: Obj) -> datetime | None:
        """Return when no machine can use the identity any more; None when that cannot be told."""
        keys, spec = keys_of(identity), spec_of(identity)
        if spec.get("formerCertificate") or (spec.get("nodeUID") and not keys):
            return None
        begin = keys[-1].get("notAfter") if keys else identity["metadata"].get("creationTimestamp")
        try:
            return parse_rfc3339(begin or "") + (KEPT_FOR if keys else self.signing_duration)
        except (ValueError, OverflowError):
            return None
