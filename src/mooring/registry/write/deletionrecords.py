"""Records of deletions: an object of another kind that states a deletion before it happens.

Rules kept here:
* The record is written first, then the object is deleted, or marked as deleted while finalizers hold it. A server that is killed in
  between leaves a record of an object that still exists, which the reader of the record must take for no deletion.
* The record is read before the object is read again. So a record that somebody else changed after the object was deleted makes the
  write fail, and is never overwritten.
* The record passes the registry like every write (law 6), as the user system:apiserver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from mooring.api.kind import Kind
from mooring.api.mooring import nodeidentity
from mooring.api.mooring.membership import with_node_recorded
from mooring.apimachinery.schema import Obj


@dataclass(frozen=True, slots=True)
class DeletionRecord:
    """Objects of `kind`, of the same name, record the deletions of another kind."""

    kind: Kind
    record: Callable[[Obj | None, Obj, datetime], Obj | None]
    """Return the record for the present one, if there is one, the object to delete, and now; None: there is nothing to write."""


def deletion_records(*, ends_membership: bool) -> Mapping[str, DeletionRecord]:
    """Return the deletion records by the plural of the kind whose deletions they record (law 10).

    `ends_membership`: the deletion of a Node ends the membership of its machine.
    """

    def record(identity: Obj | None, node: Obj, now: datetime) -> Obj | None:
        return with_node_recorded(identity, node, reregisters=not ends_membership, deleted_at=now)

    return MappingProxyType({"nodes": DeletionRecord(nodeidentity.KIND, record)})
