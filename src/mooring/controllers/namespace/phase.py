"""Phase of a namespace: active or terminating.

Rules kept here (docs/protocol/namespaces.md): nothing can be created in a Terminating namespace, so controllers skip it.
"""

from __future__ import annotations

from mooring.api.core.namespace import TERMINATING
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj

NAMESPACES = "namespaces"


def is_terminating(namespace: Obj) -> bool:
    """Return true when the namespace is being deleted."""
    if namespace["metadata"].get("deletionTimestamp"):
        return True
    return bool((namespace.get("status") or {}).get("phase") == TERMINATING)


def is_active(name: str, views: Views) -> bool:
    """Return true when the namespace exists and is not being deleted."""
    namespace = views[NAMESPACES].get(name)
    return namespace is not None and not is_terminating(namespace)
