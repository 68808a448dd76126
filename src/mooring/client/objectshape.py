"""Shape of objects that a server sends, as far as all kinds are alike: the check where they enter the client.

Rules kept here:
* An object has metadata with a name. Fields of the metadata, `spec`, `status`, its `conditions`, and `data` have their types,
  and so have the fields that every condition has.
* null is the same as absent, as in Go, and is removed.
* What one kind alone has is not checked: the schemas of all kinds take a quarter of a second to load.
"""

from __future__ import annotations

from typing import Any

from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339

_METADATA: dict[str, type] = {
    "name": str,
    "generateName": str,
    "namespace": str,
    "uid": str,
    "resourceVersion": str,
    "generation": int,
    "creationTimestamp": str,
    "deletionTimestamp": str,
    "deletionGracePeriodSeconds": int,
    "labels": dict,
    "annotations": dict,
    "finalizers": list,
    "ownerReferences": list,
    "managedFields": list,
}
_TIMES = ("creationTimestamp", "deletionTimestamp")
_PARTS: dict[str, type] = {"kind": str, "apiVersion": str, "spec": dict, "status": dict, "data": dict}
_LIST: dict[str, type] = {"resourceVersion": str, "continue": str}
_CONDITION: dict[str, type] = {"type": str, "status": str, "reason": str, "message": str}
_ITEMS: dict[str, type] = {"labels": str, "annotations": str, "finalizers": str, "ownerReferences": dict}


def is_object(obj: object) -> bool:
    """Return whether decoded JSON has the shape of an object. Fields with null are removed."""
    if not isinstance(obj, dict) or not isinstance(metadata := obj.get("metadata"), dict):
        return False
    if not (_fits(metadata, _METADATA) and metadata.get("name") and _fits(obj, _PARTS)):
        return False
    status = obj.get("status", {})
    if not _fits(status, {"conditions": list}) or not all(map(_is_time, map(metadata.get, _TIMES))):
        return False
    if not all(isinstance(one, dict) and _fits(one, _CONDITION) for one in status.get("conditions", ())):
        return False
    held = [(metadata.get(field, ()), kind) for field, kind in _ITEMS.items()]
    return all(isinstance(one, kind) for values, kind in held for one in _each(values))


def is_list(page: Obj) -> bool:
    """Return whether decoded JSON is a list of objects. A list without objects may have null for them."""
    items, metadata = page.get("items", ...), page.get("metadata")
    if metadata is not None and not (isinstance(metadata, dict) and _fits(metadata, _LIST)):
        return False
    return items is None or (isinstance(items, list) and all(map(is_object, items)))


def _fits(fields: Obj, types: dict[str, type]) -> bool:
    """Return whether the fields have these types, after those with null are removed."""
    for name in [name for name in types if fields.get(name, ...) is None]:
        del fields[name]
    return all(isinstance(fields[name], kind) for name, kind in types.items() if name in fields)


def _is_time(text: str | None) -> bool:
    try:
        return text is None or bool(parse_rfc3339(text))
    except ValueError:
        return False


def _each(values: Any) -> Any:
    return values.values() if isinstance(values, dict) else values
