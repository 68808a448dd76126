"""`View`: read-only access to the stored objects of one kind, for authn, authz and controller plans (law 2).

Rules kept here: reading a view never waits and never changes it. `revision` grows with every change of the kind, so a reader may
cache what it derived until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from mooring.apimachinery.schema import Obj


class View(Protocol):
    """All objects of one kind at `revision`."""

    @property
    def revision(self) -> int:
        """Revision of the last change of this kind; 0 before the first."""

    def get(self, name: str, namespace: str = "") -> Obj | None:
        """Return the object, with metadata.resourceVersion, or None. Callers do not change it."""

    def list(self, namespace: str = "") -> Iterable[Obj]:
        """Return all objects, or those of one namespace, in key order. Callers do not change them."""

    def changed(self, since: int) -> Iterable[NamespacedName] | None:
        """Return (namespace, name) of the objects changed or deleted after revision `since`; None when unknown."""


NamespacedName = tuple[str, str]
"""(namespace, name) of an object; the namespace of a cluster-scoped object is ""."""


def namespaced_name(obj: Obj) -> NamespacedName:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


class ViewFollower:
    """Returns the objects of a view that changed since the last call, for indexes that are derived from it."""

    __slots__ = ("_revision", "_view")

    def __init__(self) -> None:
        self._revision = -1
        self._view: View | None = None

    def changes(self, view: View) -> tuple[bool, Iterable[tuple[NamespacedName, Obj | None]]] | None:
        """Return None when nothing changed, else (start over, changed objects); None stands for a deleted object.

        Start over is true when the view is another one, or no longer has the changes: the objects are then all of its objects.
        """
        if self._view is view and self._revision == view.revision:
            return None
        changed = view.changed(self._revision) if self._view is view else None
        self._view, self._revision = view, view.revision
        if changed is None:
            return True, ((namespaced_name(obj), obj) for obj in view.list())
        return False, ((key, view.get(key[1], key[0])) for key in changed)


Views = Mapping[str, View]
"""Views by resource plural (`"secrets"`, `"clusterroles"`)."""


class FixedView:
    """View of given objects, for the node authorizer without Pods and for tests."""

    def __init__(self, objects: Iterable[Obj] = (), revision: int = 1) -> None:
        self._objects = {namespaced_name(obj): obj for obj in objects}
        self._revision = revision

    @property
    def revision(self) -> int:
        return self._revision

    def get(self, name: str, namespace: str = "") -> Obj | None:
        return self._objects.get((namespace, name))

    def list(self, namespace: str = "") -> Iterable[Obj]:
        return [self._objects[key] for key in sorted(self._objects) if not namespace or key[0] == namespace]

    def changed(self, since: int) -> Iterable[NamespacedName] | None:
        return () if since == self._revision else None
