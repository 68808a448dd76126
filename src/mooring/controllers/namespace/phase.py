"""The namespaces that something is to exist in: those that are not on their way out.

Rules kept here (docs/protocol/namespaces.md): nothing can be created in a Terminating namespace, so nothing is tried.
"""

from __future__ import annotations

from mooring.api.core.namespace import TERMINATING
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj

NAMESPACES = "namespaces"


def terminating(namespace: Obj) -> bool:
    """Whether deletion of the namespace was asked for."""
    if namespace["metadata"].get("deletionTimestamp"):
        return True
    return bool((namespace.get("status") or {}).get("phase") == TERMINATING)


def is_active(name: str, views: Views) -> bool:
    """Whether there is such a namespace, and it is to stay."""
    namespace = views[NAMESPACES].get(name)
    return namespace is not None and not terminating(namespace)
