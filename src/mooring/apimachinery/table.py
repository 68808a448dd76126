"""Server-side printing: Table documents, ages, and objects reduced to their metadata.

Source: docs/protocol/tables.md.

Rules kept here:
* Columns come from the resource; a resource without any prints Name and Age.
* `includeObject` decides the object of a row: none, the metadata (default), or the object.
* In a watch only the first event carries column definitions.
* Ages are printed as k8s.io/apimachinery `duration.HumanDuration` does: more digits while young, two units at most; `<unknown>`
  without a time, `<invalid>` for more than a second in the future.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

from mooring.apimachinery.resource import Cell, Column, Resource
from mooring.apimachinery.schema import Obj
from mooring.clock import human_duration, parse_rfc3339
from mooring.errors import BadRequestError, quoted

Include = Literal["None", "Metadata", "Object"]
META_V1 = "meta.k8s.io/v1"


def parse_include(text: str) -> Include:
    """Value of the query parameter includeObject; empty means Metadata."""
    match text:
        case "None" | "Metadata" | "Object":
            return text
        case "":
            return "Metadata"
    raise BadRequestError(
        f"Unable to convert to Table as requested: includeObject: Invalid value: {quoted(text[:64])}: "
        "must be 'Metadata', 'Object', 'None', or empty"
    )


def age(timestamp: str | None, now: datetime) -> str:
    """Return the age of an RFC 3339 time; `<unknown>` without a time or with a malformed one."""
    if not timestamp:
        return "<unknown>"
    try:
        then = parse_rfc3339(timestamp)
    except ValueError:
        return "<unknown>"
    return human_duration(now - then)


def _name(obj: Obj, now: datetime) -> Cell:
    return str(obj["metadata"].get("name", ""))


def _age(obj: Obj, now: datetime) -> Cell:
    return age(obj["metadata"].get("creationTimestamp"), now)


NAME = Column("Name", _name, format="name", description="Unique within a namespace; cannot be changed.")
AGE = Column("Age", _age, description="Time since the object was created.")
DEFAULT_COLUMNS = (NAME, AGE)
"""Columns of a resource without columns of its own."""


def table(
    resource: Resource,
    objects: Iterable[Obj],
    now: datetime,
    include: Include = "Metadata",
    list_meta: Obj | None = None,
    *,
    api_version: str = META_V1,
    with_columns: bool = True,
) -> Obj:
    """Return the objects as a Table.

    `list_meta` is the metadata of the list; None for a single object or event, whose own resourceVersion is used then.
    `api_version` is the requested meta.k8s.io/v1 or v1beta1. `with_columns=False` is for all but the first event of a watch: their
    columns are null, as in kube-apiserver, because Go clients distinguish null from an empty list.
    """
    columns = resource.columns or DEFAULT_COLUMNS
    objects = list(objects)
    if list_meta is None:
        versions = [obj["metadata"].get("resourceVersion", "") for obj in objects]
        list_meta = {"resourceVersion": versions[0]} if versions and versions[0] else {}
    return {
        "kind": "Table",
        "apiVersion": api_version,
        "metadata": list_meta,
        "columnDefinitions": _definitions(columns) if with_columns else None,
        "rows": rows(resource, objects, now, include, api_version),
    }


def rows(
    resource: Resource, objects: Iterable[Obj], now: datetime, include: Include = "Metadata", api_version: str = META_V1
) -> list[Obj]:
    """Return the rows of a Table of the objects."""
    columns = resource.columns or DEFAULT_COLUMNS
    return [_row(columns, obj, now, include, api_version) for obj in objects]


def _definitions(columns: Sequence[Column]) -> list[Obj]:
    return [
        {
            "name": column.name,
            "type": column.type,
            "format": column.format,
            "description": column.description,
            "priority": column.priority,
        }
        for column in columns
    ]


def _row(columns: Sequence[Column], obj: Obj, now: datetime, include: Include, api_version: str) -> Obj:
    row: Obj = {"cells": [column.cell(obj, now) for column in columns]}
    if include == "Object":
        row["object"] = obj
    elif include == "Metadata":
        row["object"] = partial_metadata(obj, api_version)
    return row


def partial_metadata(obj: Obj, api_version: str = META_V1) -> Obj:
    """Return the PartialObjectMetadata of an object."""
    return {"kind": "PartialObjectMetadata", "apiVersion": api_version, "metadata": obj["metadata"]}


def partial_metadata_list(objects: Iterable[Obj], list_meta: Obj, api_version: str = META_V1) -> Obj:
    """Return the PartialObjectMetadataList of a list."""
    return {
        "kind": "PartialObjectMetadataList",
        "apiVersion": api_version,
        "metadata": list_meta,
        "items": [partial_metadata(obj, api_version) for obj in objects],
    }
