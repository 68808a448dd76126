"""How objects go away: finalizers, deletionTimestamp, propagation, preconditions. Pure.

Rules kept here (docs/protocol/errors.md, docs/protocol/requests.md#delete-options, docs/protocol/objects.md,
docs/protocol/namespaces.md):
* An object with finalizers is only marked: deletionTimestamp, deletionGracePeriodSeconds 0. It goes with the last finalizer.
* A kind may grant a time of grace: deletionTimestamp is then when that is over, deletionGracePeriodSeconds how long it is, and the
  object stays until a delete leaves none. Later deletes shorten the time and never prolong it. Nothing here waits for its
  end: whoever the time is for (a Pod's node) deletes again, with 0.
* propagationPolicy Orphan and Foreground add a finalizer that the garbage collector removes; Background removes both; no policy
  keeps whichever is there. Kinds that the collector does not look at (Events) are always deleted in the background.
* A namespace is also kept by spec.finalizers, and is Terminating from the first delete on.
* Preconditions name uid and resourceVersion; a mismatch is 409.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from mooring.api.core.namespace import TERMINATING
from mooring.api.kind import Kind
from mooring.api.meta.objectmeta import FOREGROUND, ORPHAN
from mooring.apimachinery.codec.json import deep_copy
from mooring.apimachinery.options import DeleteOptions
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339, rfc3339
from mooring.errors import ConflictError
from mooring.registry.cache.stored import Stored

MAX_GRACE = 100 * 365 * 24 * 3600
"""Seconds: a century, so that every time of grace ends within the calendar."""
_POLICY_FINALIZER = {"Foreground": FOREGROUND, "Orphan": ORPHAN}


def is_namespace(kind: Kind) -> bool:
    return kind.resource.plural == "namespaces" and not kind.resource.group


def held(kind: Kind, obj: Obj) -> bool:
    """Whether something must still happen before `obj` may go."""
    metadata = obj["metadata"]
    if metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds"):
        return True
    return is_namespace(kind) and bool((obj.get("spec") or {}).get("finalizers"))


def finished(kind: Kind, obj: Obj) -> bool:
    """Whether `obj` was deleted before and nothing holds it any more."""
    return bool(obj["metadata"].get("deletionTimestamp")) and not held(kind, obj)


def finalizers_after(kind: Kind, present: list[str], propagation: str) -> list[str]:
    """The finalizers of an object after a delete with this propagationPolicy ("" = none named)."""
    if not kind.garbage_collected:
        propagation = "Background"
    if not propagation:
        return present
    kept = [item for item in present if item not in (FOREGROUND, ORPHAN)]
    added = _POLICY_FINALIZER.get(propagation)
    return [*kept, added] if added else kept


def marked(kind: Kind, obj: Obj, propagation: str, now: datetime, asked: int | None = None) -> Obj:
    """A copy of `obj` as a delete leaves it: equal to `obj` when it was marked like this before. `asked`: gracePeriodSeconds."""
    new = deep_copy(obj)
    metadata: dict[str, Any] = new["metadata"]
    finalizers = finalizers_after(kind, metadata.get("finalizers") or [], propagation)
    if finalizers:
        metadata["finalizers"] = finalizers
    else:
        metadata.pop("finalizers", None)
    if not metadata.get("deletionTimestamp"):
        seconds = min(kind.grace_seconds(obj, asked), MAX_GRACE)
        metadata["deletionTimestamp"] = rfc3339(now + timedelta(seconds=seconds))
        metadata["deletionGracePeriodSeconds"] = seconds
        if metadata.get("generation"):
            metadata["generation"] += 1
    elif asked is not None and asked < (granted := metadata.get("deletionGracePeriodSeconds") or 0):
        begun = parse_rfc3339(metadata["deletionTimestamp"]) - timedelta(seconds=granted)
        metadata["deletionTimestamp"] = rfc3339(begun + timedelta(seconds=asked))
        metadata["deletionGracePeriodSeconds"] = asked
    if is_namespace(kind):
        new["status"] = {**(new.get("status") or {}), "phase": TERMINATING}
    return new


def check_uid(kind: Kind, name: str, wanted: str, stored: Stored | None) -> None:
    """Raises ConflictError unless there is an object with uid `wanted` ("" = whatever is there)."""
    if wanted:
        actual = stored.obj["metadata"].get("uid", "") if stored is not None else ""
        if wanted != actual:
            if stored is None:
                why = f"uid mismatch: the provided object specified uid {wanted}, and no existing object was found"
            else:
                namespace = stored.obj["metadata"].get("namespace", "")
                key = "/".join(filter(None, (kind.storage, namespace, name)))
                why = (
                    f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
                    f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {actual}"
                )
            raise ConflictError.of(kind.resource.group, kind.resource.plural, name, why)


def check_preconditions(kind: Kind, stored: Stored, options: DeleteOptions) -> None:
    """Raises ConflictError unless the object is the one that a delete names. Empty text is a condition, too."""
    for what, wanted, actual, else_ in (
        ("UID", options.uid, stored.obj["metadata"].get("uid", ""), "deleted and then recreated"),
        ("ResourceVersion", options.resource_version, str(stored.revision), "modified"),
    ):
        if wanted is not None and wanted != actual:
            why = f"the {what} in the precondition ({wanted}) does not match the {what} in record ({actual})."
            why = f"{why} The object might have been {else_}"
            raise ConflictError.of(kind.storage_kind.resource.group, kind.resource.kind, stored.name, why)
