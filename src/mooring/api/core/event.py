"""Event of the core group: strategy, validation, print columns.

Rules kept here (docs/protocol/tables.md, docs/protocol/selectors.md, docs/protocol/objects.md#updates):
* PUT of a missing Event creates it. An Event without eventTime is in the namespace of the object it is about. Events about
  cluster-scoped objects are in `default`, or with eventTime also in `kube-system`.
* Any name that is one path segment is allowed, and any finalizer, because Kubernetes validates Events of the core group by its
  oldest rules.
* An Event with eventTime follows the rules of events.k8s.io: reporter, action and reason are required, and have length limits. The
  same objects are served under other field names in that group (`mooring.api.events`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from mooring.api.kind import Kind, is_untracked
from mooring.api.objectmeta import name_cell
from mooring.apimachinery.names import path_segment_errors, qualified_name_errors
from mooring.apimachinery.resource import Column, Resource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import age
from mooring.clock import rfc3339
from mooring.errors import FieldError, invalid, required

MAX_MESSAGE = 1024
MAX_WORD = 128
"""Bytes of reason, action and reporting instance, which are machine-readable words."""


INVOLVED = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")


def new_event(
    about: Obj,
    reason: str,
    text: str,
    now: datetime,
    *,
    metadata: Obj,
    is_warning: bool,
    component: str = "mooring",
    host: str = "",
) -> Obj:
    """Return an Event about a cluster-scoped object. `about` is its reference, and `metadata` has name or generateName."""
    return {
        "kind": "Event",
        "apiVersion": "v1",
        "metadata": {**metadata, "namespace": "default"},
        "involvedObject": about,
        "type": "Warning" if is_warning else "Normal",
        "reason": reason,
        "message": text[:MAX_MESSAGE],
        "source": {"component": component, **({"host": host} if host else {})},
        "firstTimestamp": rfc3339(now),
        "lastTimestamp": rfc3339(now),
        "count": 1,
    }


def _selectable_fields(obj: Obj) -> Mapping[str, str]:
    involved = obj.get("involvedObject") or {}
    fields = {f"involvedObject.{name}": involved.get(name, "") for name in INVOLVED}
    component = obj.get("reportingComponent", "")
    fields["reason"] = obj.get("reason", "")
    fields["reportingComponent"] = component
    fields["source"] = (obj.get("source") or {}).get("component", "") or component
    fields["type"] = obj.get("type", "")
    return fields


def _validate(obj: Obj) -> list[FieldError]:
    return event_errors(obj, "reportingComponent")


def event_errors(obj: Obj, reporter_name: str) -> list[FieldError]:
    """Validate an Event in stored form; `reporter_name` is the name of the reporter's field in errors."""
    namespace, involved_namespace = (
        obj["metadata"].get("namespace", ""),
        (obj.get("involvedObject") or {}).get("namespace", ""),
    )
    has_event_time = bool(obj.get("eventTime"))
    if involved_namespace:
        matches = has_event_time or namespace == involved_namespace
    else:
        matches = namespace in (("default", "kube-system") if has_event_time else ("default",))
    errors = (
        [] if matches else [invalid("involvedObject.namespace", involved_namespace, "does not match event.namespace")]
    )
    if not has_event_time:
        return errors
    reporter = obj.get("reportingComponent", "")
    if not reporter:
        errors.append(required(reporter_name))
    errors += [invalid(reporter_name, reporter, detail) for detail in qualified_name_errors(reporter)]
    for word in ("reportingInstance", "action", "reason"):
        value = obj.get(word, "")
        if not value:
            errors.append(required(word))
        elif len(value.encode("utf-8", "surrogatepass")) > MAX_WORD:
            errors.append(invalid(word, "", f"can have at most {MAX_WORD} characters"))
    if len(obj.get("message", "").encode("utf-8", "surrogatepass")) > MAX_MESSAGE:
        errors.append(invalid("message", "", f"can have at most {MAX_MESSAGE} characters"))
    return errors


def _first_seen(obj: Obj, now: datetime) -> str:
    return age(obj.get("firstTimestamp") or obj.get("eventTime"), now)


def _last_seen(obj: Obj, now: datetime) -> str:
    series = obj.get("series")
    if series is not None:
        return age(series.get("lastObservedTime"), now)
    last = obj.get("lastTimestamp")
    return age(last, now) if last else _first_seen(obj, now)


def _count(obj: Obj, now: datetime) -> int:
    series = obj.get("series")
    times: int = (series or obj).get("count", 0)
    return times if series is not None else times or 1


def _involved_object(obj: Obj, now: datetime) -> str:
    involved = obj.get("involvedObject") or {}
    kind: str = involved.get("kind", "").lower()
    return f"{kind}/{involved['name']}" if involved.get("name") else kind


def _source(obj: Obj, now: datetime) -> str:
    source = obj.get("source") or {}
    component: str = source.get("component") or obj.get("reportingComponent", "")
    instance = source.get("host") or obj.get("reportingInstance")
    return f"{component}, {instance}" if instance else component


KIND = Kind(
    resource=Resource(
        group="",
        version="v1",
        kind="Event",
        plural="events",
        namespaced=True,
        schema=message("io.k8s.api.core.v1.Event"),
        short_names=("ev",),
        columns=(
            Column("Last Seen", _last_seen, description="Time since it was last observed."),
            Column("Type", lambda obj, now: obj.get("type", ""), description="Normal or Warning."),
            Column("Reason", lambda obj, now: obj.get("reason", ""), description="Why, as one word."),
            Column("Object", _involved_object, description="What the event is about."),
            Column(
                "Subobject",
                lambda obj, now: (obj.get("involvedObject") or {}).get("fieldPath", ""),
                description="The part of the object that the event is about.",
                priority=1,
            ),
            Column("Source", _source, description="Who reported it.", priority=1),
            Column("Message", lambda obj, now: obj.get("message", "").strip(), description="What happened."),
            Column("First Seen", _first_seen, description="Time since it was first observed.", priority=1),
            Column("Count", _count, type="integer", description="How often it was observed.", priority=1),
            Column("Name", name_cell, format="name", description="Name of the event.", priority=1),
        ),
    ),
    storage="/registry/events",
    tracks_creator=is_untracked,
    name_errors=path_segment_errors,
    validate=_validate,
    selectable_fields=_selectable_fields,
    field_labels=(*(f"involvedObject.{name}" for name in INVOLVED), "reason", "reportingComponent", "source", "type"),
    allow_create_on_update=True,
    # kube-apiserver's --event-ttl.
    life_seconds=3600,
    finalizers_need_domain=False,
    garbage_collected=False,
)
