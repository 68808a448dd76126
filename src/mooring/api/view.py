"""`View`: read-only access to the stored objects of one kind, for authn, authz and controller plans (law 2).

Rules kept here:
* Reading a view never waits and never changes it. `revision` grows with every change of the kind, so a reader may cache what it
  derived until then.
* An object whose newest state cannot be read is absent, and `problem` says why. A reader to which absence means yes must ask.
* Plans of controllers read `Guarded` views, where such an object is an error instead. It stops the plans that need it, and no
  others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from mooring.apimachinery.schema import Obj
from mooring.errors import UnreadableObjectError


class View(Protocol):
    """All objects of one kind at `revision`."""

    @property
    def revision(self) -> int:
        """Number that grows with each change of this kind and of what can be read; 0 before the first."""

    def get(self, name: str, namespace: str = "") -> Obj | None:
        """Return the object, with metadata.resourceVersion, or None. Callers do not change it."""

    def list(self, namespace: str = "") -> Iterable[Obj]:
        """Return all objects, or those of one namespace, in key order. Callers do not change them."""

    def changed(self, since: int) -> Iterable[NamespacedName] | None:
        """Return (namespace, name) of the objects changed or deleted after revision `since`; None when unknown."""

    def problem(self, name: str, namespace: str = "") -> str:
        """Return why the newest state of an object cannot be read; "" for an object that can be read, or that does not exist."""

    def unreadable(self, namespace: str = "") -> Mapping[NamespacedName, str]:
        """Return the objects whose newest state cannot be read, each with the reason."""


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
        Where an object of a guarded view cannot be read, every call raises until it can: an index would otherwise go on without it.
        """
        if isinstance(view, Guarded):
            # Each plan has guarded views of its own. What is followed is the view beneath.
            view.check()
            view = view.unguarded
        if self._view is view and self._revision == view.revision:
            return None
        changed = view.changed(self._revision) if self._view is view else None
        objects: list[tuple[NamespacedName, Obj | None]]
        if changed is None:
            objects = [(namespaced_name(obj), obj) for obj in view.list()]
        else:
            objects = [(key, view.get(key[1], key[0])) for key in changed]
        self._view, self._revision = view, view.revision
        return changed is None, objects


Views = Mapping[str, View]
"""Views by resource plural (`"secrets"`, `"clusterroles"`)."""


class AllReadable:
    """Part of a view whose objects can all be read."""

    __slots__ = ()

    def problem(self, name: str, namespace: str = "") -> str:
        return ""

    def unreadable(self, namespace: str = "") -> Mapping[NamespacedName, str]:
        return {}


class Guarded:
    """View for plans: reading an object that cannot be read raises UnreadableObjectError."""

    __slots__ = ("_plural", "_view")

    def __init__(self, plural: str, view: View) -> None:
        self._plural = plural
        self._view = view

    @property
    def revision(self) -> int:
        return self._view.revision

    def get(self, name: str, namespace: str = "") -> Obj | None:
        obj = self._view.get(name, namespace)
        if obj is None and (problem := self._view.problem(name, namespace)):
            raise self._error((namespace, name), problem)
        return obj

    def list(self, namespace: str = "") -> Iterable[Obj]:
        """Return all objects. A plan to which unreadable ones do not matter calls `readable`."""
        self.check(namespace)
        return self._view.list(namespace)

    def check(self, namespace: str = "") -> None:
        """Raise UnreadableObjectError while an object cannot be read."""
        for name, problem in self._view.unreadable(namespace).items():
            raise self._error(name, problem)

    def _error(self, name: NamespacedName, problem: str) -> UnreadableObjectError:
        return UnreadableObjectError(f"{self._plural} {'/'.join(filter(None, name))} cannot be read: {problem}")

    def changed(self, since: int) -> Iterable[NamespacedName] | None:
        return self._view.changed(since)

    def problem(self, name: str, namespace: str = "") -> str:
        return self._view.problem(name, namespace)

    def unreadable(self, namespace: str = "") -> Mapping[NamespacedName, str]:
        return self._view.unreadable(namespace)

    @property
    def unguarded(self) -> View:
        return self._view


def guarded(views: Views) -> Views:
    """Return the views as plans read them."""
    return {plural: Guarded(plural, view) for plural, view in views.items()}


def readable(view: View) -> View:
    """Return the view without the guard, for a plan to which objects that cannot be read do not matter."""
    return view.unguarded if isinstance(view, Guarded) else view


class FixedView:
    """View of given objects, for the node authorizer without Pods and for tests."""

    def __init__(
        self,
        objects: Iterable[Obj] = (),
        revision: int = 1,
        unreadable: Mapping[NamespacedName, str] | None = None,
    ) -> None:
        self._objects = {namespaced_name(obj): obj for obj in objects}
        self._unreadable = unreadable or {}
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

    def problem(self, name: str, namespace: str = "") -> str:
        return self._unreadable.get((namespace, name), "")

    def unreadable(self, namespace: str = "") -> Mapping[NamespacedName, str]:
        return {key: problem for key, problem in self._unreadable.items() if not namespace or key[0] == namespace}
