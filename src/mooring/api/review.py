"""Reviews: kinds that are answered when they are created, and never stored."""

from __future__ import annotations

from collections.abc import Callable

from mooring.api.kind import Change, Kind
from mooring.apimachinery.resource import Resource
from mooring.apimachinery.schema import Message, Obj
from mooring.errors import FieldError


def drop_status(obj: Obj, change: Change) -> None:
    """Remove the status of the client: the server sets it."""
    obj.pop("status", None)


def review_kind(
    group: str,
    version: str,
    schema: Message,
    *,
    validate: Callable[[Obj], list[FieldError]] = lambda obj: [],
    prepare: Callable[[Obj, Change], None] = drop_status,
    namespaced: bool = False,
) -> Kind:
    """Return a kind that is named like its schema, and can only be created."""
    name = schema.name.rpartition(".")[2]
    return Kind(
        resource=Resource(
            group=group,
            version=version,
            kind=name,
            plural=f"{name.lower()}s",
            namespaced=namespaced,
            schema=schema,
            verbs=("create",),
        ),
        storage="",
        name_errors=lambda name: [],
        prepare_for_create=prepare,
        validate=validate,
    )
