"""Views: read-only, in-memory pictures of one kind, which authn, authz and controller plans read (law 2).

Rules kept here: reading a view never waits and never changes anything. `revision` grows whenever anything of that kind
changes, so that a reader may keep what it derived until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from mooring.apimachinery.schema import Obj


class View(Protocol):
    """Everything of one kind, as of `revision`."""

    @property
    def revision(self) -> int:
        """Revision of the last change of this kind (0: nothing ever)."""

    def get(self, name: str, namespace: str = "") -> Obj | None:
        """The object, with metadata.resourceVersion; None when there is none. Do not change it."""

    def list(self, namespace: str = "") -> Iterable[Obj]:
        """All objects, or those of one namespace, in key order. Do not change them."""

    def changed(self, since: int) -> Iterable[tuple[str, str]] | None:
        """(namespace, name) of whatever changed or went after `revision` was `since`; None: unknown, look at everything."""


Views = Mapping[str, View]
"""Views by resource plural (`"secrets"`, `"clusterroles"`)."""


class FixedView:
    """A view over given objects: for tests, and for plans run against a listed state."""

    def __init__(self, objects: Iterable[Obj] = (), revision: int = 1) -> None:
        self._objects = {(obj["metadata"].get("namespace", ""), obj["metadata"]["name"]): obj for obj in objects}
        self._revision = revision

    @property
    def revision(self) -> int:
        return self._revision

    def get(self, name: str, namespace: str = "") -> Obj | None:
        return self._objects.get((namespace, name))

    def list(self, namespace: str = "") -> Iterable[Obj]:
        return [self._objects[key] for key in sorted(self._objects) if not namespace or key[0] == namespace]

    def changed(self, since: int) -> Iterable[tuple[str, str]] | None:
        return () if since == self._revision else None
