"""RBAC views built from objects, for tests."""

from __future__ import annotations

from collections.abc import Iterable

from mooring.api.view import FixedView, View
from mooring.apimachinery.schema import Obj

PLURALS = {
    "Role": "roles",
    "ClusterRole": "clusterroles",
    "RoleBinding": "rolebindings",
    "ClusterRoleBinding": "clusterrolebindings",
}


def rbac_views(objects: Iterable[Obj] = (), revision: int = 1) -> dict[str, View]:
    """Return the four views that RBAC reads, with `objects`."""
    everything = list(objects)
    return {
        plural: FixedView([obj for obj in everything if obj["kind"] == kind], revision)
        for kind, plural in PLURALS.items()
    }
