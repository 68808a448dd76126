"""ConfigMaps that a server keeps up to date and administrators may edit: a three-way merge by key.

Rules kept here:
* The annotation `mooring.dev/last-written` holds the SHA-256 of each value as a server last wrote it. A value that still has
  this digest is the server's, and follows the server's settings. Any other value is an administrator's, and stays.
* A key that an administrator removed stays away. A key that no server ever wrote is added. A key that the server no longer wants
  is removed as long as it holds what the server wrote.
* Without the annotation nothing is known of earlier writes: values that are there stay.
* A deleted ConfigMap is made again. Nothing is written when nothing changes.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.options import WriteOptions
from mooring.apimachinery.schema import Obj
from mooring.errors import AlreadyExistsError, ConflictError
from mooring.registry.store import Registry

log = logging.getLogger("mooring.plane")

LAST_WRITTEN = "mooring.dev/last-written"


@dataclass(frozen=True, slots=True)
class Merged:
    """The ConfigMap to write, None when it is right as it is, and the keys whose edited values differ from the server's."""

    obj: Obj | None
    edited: tuple[str, ...] = ()


def merged(existing: Obj | None, wanted: Obj) -> Merged:
    """Merge what a server wants into what is stored."""
    ours: Mapping[str, str] = wanted["data"]
    if existing is None:
        return Merged(_stamped(wanted, {key: _digest(value) for key, value in ours.items()}))
    data = dict(existing.get("data") or {})
    written = _written(existing)
    digests: dict[str, str] = {}
    edited: list[str] = []
    for key, value in ours.items():
        last, current = written.get(key), data.get(key)
        untouched = current == value or (_digest(current) == last if current is not None else last is None)
        if untouched:
            data[key], digests[key] = value, _digest(value)
        else:
            edited.append(key)
            if last is not None:
                digests[key] = last
    for key in written.keys() - ours.keys():
        if key in data and _digest(data[key]) == written[key]:
            del data[key]
    changed = _stamped({**existing, "data": data}, digests)
    same = data == (existing.get("data") or {}) and digests == written
    return Merged(None if same else changed, tuple(edited))


async def publish(
    registry: Registry, wanted: Obj, change: Change, complete: Callable[[Obj], Obj] = lambda obj: obj
) -> None:
    """Create the ConfigMap `wanted`, or bring it up to date. `complete` adds what depends on it to what is written.

    Raises ApiError, StorageError.
    """
    kind = BY_PLURAL["configmaps"]
    namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
    existing: Any = registry.views["configmaps"].get(name, namespace)
    found = merged(existing, wanted)
    for key in found.edited:
        log.warning(
            "the ConfigMap %s/%s was edited: its %s stays as it is, and does not follow this server's settings",
            namespace, name, key,
        )  # fmt: skip
    if found.obj is None:
        return
    try:
        if existing is None:
            await registry.create(kind, namespace, complete(found.obj), change, WriteOptions())
        else:
            await registry.update(kind, namespace, name, complete(found.obj), change, WriteOptions())
    except (AlreadyExistsError, ConflictError):
        return  # another server of this cluster was faster, and writes the same


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


def _written(config_map: Obj) -> dict[str, str]:
    """The digests of the annotation; none when it is missing or is not a server's."""
    try:
        value = json.loads((config_map["metadata"].get("annotations") or {}).get(LAST_WRITTEN, "{}"))
    except ValueError:
        return {}
    if not isinstance(value, dict):
        return {}
    return {key: digest for key, digest in value.items() if isinstance(digest, str)}


def _stamped(config_map: Obj, digests: Mapping[str, str]) -> Obj:
    metadata = config_map["metadata"]
    annotations = {**(metadata.get("annotations") or {}), LAST_WRITTEN: json.dumps(digests, sort_keys=True)}
    return {**config_map, "metadata": {**metadata, "annotations": annotations}}
