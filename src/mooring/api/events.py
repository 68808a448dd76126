"""Event of events.k8s.io: an Event of the core group under other field names, with its storage conversion.

Rules kept here (k8s.io/api events/v1; KEP 383; docs/protocol/selectors.md):
* Objects are stored in the form of the core group (docs/adr/0016). The two forms differ only in the names of top-level fields.
* An Event created through this group has eventTime and the type Normal or Warning, and leaves the deprecated fields unset. A series
  counts at least two and has the time of its last observation.
* Afterwards only metadata and the series change; an Event without eventTime may stay as it is.
* Errors name fields as the core group does, whichever form was sent, because kube-apiserver validates one internal form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from mooring.api.core import event
from mooring.api.kind import Alias, Kind
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.resource import Cell, Column, Resource
from mooring.apimachinery.schema import Obj, message
from mooring.errors import FieldError, invalid, required

GROUP = "events.k8s.io"
TYPES = ("Normal", "Warning")
MIN_SERIES = 2
"""Smallest count of a series: an event that happened once has none."""


EVENT = message("io.k8s.api.events.v1.Event")

_CORE_NAMES = {
    "reportingController": "reportingComponent",
    "regarding": "involvedObject",
    "note": "message",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
"""Field names of the core group by the field names of this group, where they differ."""
_EVENTS_NAMES = {core: name for name, core in _CORE_NAMES.items()}


def to_core(obj: Obj) -> Obj:
    """Convert an Event of this group to the form of the core group."""
    return _renamed(obj, _CORE_NAMES) | {"apiVersion": "v1"}


def from_core(obj: Obj) -> Obj:
    """Convert an Event of the core group to the form of this group."""
    converted = _renamed(obj, _EVENTS_NAMES) | {"apiVersion": f"{GROUP}/v1"}
    for name in (
        "reportingController",
        "reportingInstance",
    ):  # the core group always writes them, this group only when set
        if converted.get(name) == "":
            del converted[name]
    return converted


def _renamed(obj: Obj, names: Mapping[str, str]) -> Obj:
    return {names.get(name, name): value for name, value in obj.items()}


_CORE_LABELS = {
    "reason": "reason",
    **{f"regarding.{name}": f"involvedObject.{name}" for name in event.INVOLVED},
    "reportingController": "reportingComponent",
    "type": "type",
}
"""Field labels of the core group by the field labels of this group."""


def _validate(obj: Obj) -> list[FieldError]:
    return event.event_errors(obj, "reportingController")


_UNSET = ("firstTimestamp", "lastTimestamp", "count")
_IMMUTABLE = (
    "involvedObject",
    "reason",
    "message",
    "source",
    "firstTimestamp",
    "lastTimestamp",
    "count",
    "type",
    "eventTime",
    "action",
    "related",
)


def _validate_create(obj: Obj) -> list[FieldError]:
    errors = _series_errors(obj)
    if not obj.get("eventTime"):
        errors.append(required("eventTime"))
    if obj.get("type", "") not in TYPES:
        errors.append(invalid("type", "", f"has invalid value: {obj.get('type', '')}"))
    errors += [invalid(name, "", "needs to be unset") for name in _UNSET if obj.get(name)]
    if any((obj.get("source") or {}).values()):
        errors.append(invalid("source", "", "needs to be unset"))
    return errors


_REFERENCE = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_INITIALISMS = {"uid": "UID", "apiVersion": "APIVersion"}
_TEXTS = frozenset(("action", "message", "reason", "reportingComponent", "reportingInstance", "type"))


def _go_form(name: str, value: Any) -> Any:
    """Return the value of an immutable field as Go prints its internal type."""
    if name == "involvedObject" or (name == "related" and value is not None):
        reference = value or {}
        return {_INITIALISMS.get(key) or key[0].upper() + key[1:]: reference.get(key, "") for key in _REFERENCE}
    if name == "source":
        source = value or {}
        return {"Component": source.get("component", ""), "Host": source.get("host", "")}
    return "" if value is None and name in _TEXTS else value


def _validate_update(new: Obj, old: Obj) -> list[FieldError]:
    errors = _series_errors(new) if new.get("series") != old.get("series") else []
    for name in (*_IMMUTABLE, "reportingComponent", "reportingInstance"):
        if (new.get(name) or None) != (old.get(name) or None):
            path = "reportingController" if name == "reportingComponent" else name
            errors.append(invalid(path, _go_form(name, new.get(name)), "field is immutable"))
    return errors


def _series_errors(obj: Obj) -> list[FieldError]:
    series = obj.get("series")
    if series is None:
        return []
    errors: list[FieldError] = []
    if (series.get("count") or 0) < MIN_SERIES:
        errors.append(invalid("series.count", "", f"should be at least {MIN_SERIES}"))
    if not series.get("lastObservedTime"):
        errors.append(required("series.lastObservedTime"))
    return errors


def _converted_column(column: Column) -> Column:
    def cell(obj: Obj, now: datetime) -> Cell:
        return column.cell(to_core(obj), now)

    return replace(column, cell=cell)


KIND = Kind(
    resource=Resource(
        group=GROUP,
        version="v1",
        kind="Event",
        plural="events",
        namespaced=True,
        schema=EVENT,
        short_names=("ev",),
        columns=tuple(map(_converted_column, event.KIND.resource.columns)),
        stored_as=("", "v1", "Event"),
    ),
    storage=event.KIND.storage,
    name_errors=dns1123_subdomain_errors,
    validate=_validate,
    validate_create=_validate_create,
    validate_update=_validate_update,
    field_labels=tuple(_CORE_LABELS),
    allow_create_on_update=event.KIND.allow_create_on_update,
    garbage_collected=event.KIND.garbage_collected,
    alias=Alias(of=event.KIND, to_storage=to_core, from_storage=from_core, field_labels=_CORE_LABELS),
)
