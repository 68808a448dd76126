"""Resources as clients see them: names, verbs, subresources, schema and printed columns.

Rules kept here: data only. Discovery, OpenAPI, Table, request info and the codec read it; policy (defaults, validation)
lives in `mooring.api.kind`, which contains a `Resource`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from mooring.apimachinery.schema import Message, Obj

Cell = str | int | bool | None
ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class Column:
    """One Table column. `cell` computes it from the object and the time of printing (docs/protocol/tables.md)."""

    name: str
    cell: Callable[[Obj, datetime], Cell]
    type: Literal["string", "integer", "date", "boolean"] = "string"
    format: str = ""
    description: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Subresource:
    """One subresource. `kind`/`group`/`version` are set only when they differ from the parent (serviceaccounts/token)."""

    name: str
    verbs: tuple[str, ...]
    kind: str = ""
    group: str = ""
    version: str = ""
    schema: Message | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePath:
    """Kind and path of a resource: all that a client needs to know of it."""

    group: str
    version: str
    kind: str
    plural: str

    @property
    def api_version(self) -> str:
        """`v1` or `<group>/<version>`, as objects have it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def prefix(self) -> str:
        """URL path of the group version: `/api/v1` or `/apis/<group>/<version>`."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of a collection, object or subresource. Validation has made names safe as path segments."""
        parts = [self.prefix]
        if namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource(ResourcePath):
    """One resource as clients see it."""

    namespaced: bool
    schema: Message
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: tuple[Subresource, ...] = ()
    columns: tuple[Column, ...] = ()
    returns_deleted: bool = False
    """The response of a DELETE that removes an object is its last state instead of a Status, as declared in OpenAPI.
    (For namespaces OpenAPI declares a Status although the response is the object, as in kube-apiserver.)"""
    stored_as: tuple[str, str, str] | None = None
    """Group, version and kind of the form in which objects are stored, when it differs from this one."""

    @property
    def singular(self) -> str:
        """Name of one object in commands."""
        return self.kind.lower()
