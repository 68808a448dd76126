"""Deletion: finalizers, grace periods, propagation, preconditions, and the records that state one before it happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from mooring.api.core.namespace import TERMINATING
from mooring.api.kind import Kind
from mooring.api.mooring import nodeidentity
from mooring.api.mooring.membership import with_node_recorded
from mooring.api.objectmeta import FOREGROUND, ORPHAN
from mooring.apimachinery.codec.json import deep_copy
from mooring.apimachinery.options import DeleteOptions
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339, rfc3339
from mooring.errors import ConflictError, NamespaceHeldError
from mooring.registry.admission.objects import is_namespace
from mooring.registry.cache.events import Stored
from mooring.registry.cache.keys import ForeignKeys

# Records of deletions: an object of another kind that states a deletion before it happens.
#
# Rules kept here:
# * The record is written first, then the object is deleted, or marked as deleted while finalizers hold it. A server that is killed
#   in between leaves a record of an object that still exists, which the reader of the record must take for no deletion.
# * The record is read before the object is read again. So a record that somebody else changed after the object was deleted makes
#   the write fail, and is never overwritten.
# * The record passes the registry like every write (law 6), as the user system:apiserver.


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


# Rules of deletion: finalizers, grace periods, propagation policies and preconditions. Pure.
#
# Rules kept here (docs/protocol/errors.md, docs/protocol/requests.md#delete-options, docs/protocol/objects.md,
# docs/protocol/namespaces.md):
# * An object with finalizers is only marked, with deletionTimestamp and deletionGracePeriodSeconds 0. It is deleted when the last
#   finalizer is removed.
# * A kind may grant a grace period. deletionTimestamp is then the end of it, deletionGracePeriodSeconds its length, and the
#   object stays until a delete with 0. Later deletes may shorten the period and never extend it. The server does not wait for its
#   end: the client for which the period is meant (a Pod's node) deletes again, with 0.
# * propagationPolicy Orphan and Foreground add a finalizer that the garbage collector removes. Background removes both. Without a
#   policy they stay as they are. Kinds that the garbage collector does not handle (Events) are always deleted in the background.
# * A namespace is also held by spec.finalizers, and its phase is Terminating from the first delete on.
# * Preconditions name uid and resourceVersion. A mismatch is 409.

MAX_GRACE = 100 * 365 * 24 * 3600
"""Seconds: a century, so that every grace period ends within the range of dates."""
MAX_LISTED = 10
"""Resources that an error names."""
_POLICY_FINALIZER = {"Foreground": FOREGROUND, "Orphan": ORPHAN}


def is_held(kind: Kind, obj: Obj) -> bool:
    """Return True while finalizers or a grace period hold `obj`."""
    metadata = obj["metadata"]
    if metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds"):
        return True
    return is_namespace(kind) and bool((obj.get("spec") or {}).get("finalizers"))


def is_finished(kind: Kind, obj: Obj) -> bool:
    """Return True when `obj` was marked as deleted and nothing holds it any more."""
    return bool(obj["metadata"].get("deletionTimestamp")) and not is_held(kind, obj)


def finalizers_after(kind: Kind, present: list[str], propagation: str) -> list[str]:
    """Return the finalizers of an object after a delete with this propagationPolicy, "" for none."""
    if not kind.garbage_collected:
        propagation = "Background"
    if not propagation:
        return present
    kept = [item for item in present if item not in (FOREGROUND, ORPHAN)]
    added = _POLICY_FINALIZER.get(propagation)
    return [*kept, added] if added else kept


def mark_deleted(kind: Kind, obj: Obj, propagation: str, now: datetime, requested: int | None = None) -> Obj:
    """Return a copy of `obj` marked as deleted, equal to `obj` when it was marked alike before. `requested`: gracePeriodSeconds."""
    new = deep_copy(obj)
    metadata: dict[str, Any] = new["metadata"]
    finalizers = finalizers_after(kind, metadata.get("finalizers") or [], propagation)
    if finalizers:
        metadata["finalizers"] = finalizers
    else:
        metadata.pop("finalizers", None)
    if not metadata.get("deletionTimestamp"):
        seconds = min(kind.grace_seconds(obj, requested), MAX_GRACE)
        metadata["deletionTimestamp"] = rfc3339(now + timedelta(seconds=seconds))
        metadata["deletionGracePeriodSeconds"] = seconds
        if metadata.get("generation"):
            metadata["generation"] += 1
    elif requested is not None and requested < (granted := metadata.get("deletionGracePeriodSeconds") or 0):
        begun = parse_rfc3339(metadata["deletionTimestamp"]) - timedelta(seconds=granted)
        metadata["deletionTimestamp"] = rfc3339(begun + timedelta(seconds=requested))
        metadata["deletionGracePeriodSeconds"] = requested
    if is_namespace(kind):
        new["status"] = {**(new.get("status") or {}), "phase": TERMINATING}
    return new


def check_uid(kind: Kind, name: str, wanted: str, stored: Stored | None) -> None:
    """Raise ConflictError unless the stored object has the uid `wanted`; "" accepts any, and none."""
    if wanted:
        actual = stored.obj["metadata"].get("uid", "") if stored is not None else ""
        if wanted != actual:
            if stored is None:
                reason = f"uid mismatch: the provided object specified uid {wanted}, and no existing object was found"
            else:
                namespace = stored.obj["metadata"].get("namespace", "")
                key = "/".join(filter(None, (kind.storage, namespace, name)))
                reason = (
                    f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
                    f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {actual}"
                )
            raise ConflictError.of(kind.resource.group, kind.resource.plural, name, reason)


def check_preconditions(kind: Kind, stored: Stored, options: DeleteOptions) -> None:
    """Raise ConflictError unless the object meets the preconditions of a delete. An empty string is a condition, too."""
    for label, wanted, actual, otherwise in (
        ("UID", options.uid, stored.obj["metadata"].get("uid", ""), "deleted and then recreated"),
        ("ResourceVersion", options.resource_version, str(stored.revision), "modified"),
    ):
        if wanted is None or wanted == actual:
            continue
        if is_namespace(kind):  # kube-apiserver checks these itself, before its store does
            reason = f"Precondition failed: {label} in precondition: {wanted}, {label} in object meta: {actual}"
            raise ConflictError.of("", kind.resource.plural, stored.name, reason)
        reason = f"the {label} in the precondition ({wanted}) does not match the {label} in record ({actual})."
        reason = f"{reason} The object might have been {otherwise}"
        raise ConflictError.of(kind.storage_kind.resource.group, kind.resource.kind, stored.name, reason)


def check_foreign_content(kind: Kind, name: str, foreign: ForeignKeys) -> None:
    """Raise NamespaceHeldError when a namespace is to be removed while objects of other servers are in it.

    Its namespace controller does not see them. They would be left behind, and come back with the next namespace of this name.
    """
    left = foreign.resources(name) if is_namespace(kind) else None
    if left:
        listed = ", ".join(f"{resource} ({count})" for resource, count in list(left.items())[:MAX_LISTED])
        raise NamespaceHeldError.of(
            "", "namespaces", name, f"the namespace has objects of kinds that this server does not serve: {listed}"
        )
