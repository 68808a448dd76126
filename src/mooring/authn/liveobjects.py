"""Is the object a credential is bound to still there? (reference/kubernetes.md 5.7)

Rules kept here: the object exists, its uid is the one the credential names, and it has not been on its way out for more
than `GRACE`: a pod that is shutting down may still call for a minute.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from mooring.clock import parse_rfc3339
from mooring.kinds.view import Views

GRACE = timedelta(seconds=60)

GONE = "bound-object-gone"
REPLACED = "bound-object-replaced"
DELETED = "bound-object-deleted"
UNKNOWN_KIND = "bound-object-unknown-kind"


def problem(views: Views, plural: str, namespace: str, name: str, uid: str, now: datetime) -> str | None:
    """A reason code, or None when the object lives."""
    view = views.get(plural)
    if view is None:
        return UNKNOWN_KIND
    obj = view.get(name, namespace)
    if obj is None:
        return GONE
    metadata = obj["metadata"]
    if metadata.get("uid") != uid:
        return REPLACED
    deleted = metadata.get("deletionTimestamp")
    if deleted and parse_rfc3339(deleted) + GRACE < now:
        return DELETED
    return None
