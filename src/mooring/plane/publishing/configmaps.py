"""ConfigMaps that a server keeps up to date and administrators may edit: a three-way merge by key.

Rules kept here:
* The annotation `mooring.dev/last-written` holds the SHA-256 of each value as a server last wrote it. A value that still has this
  digest follows the settings of the server. Any other value was edited by an administrator, and stays.
* A key that an administrator removed is not added again. A key that no server ever wrote is added. A key that the server no longer
  writes is removed, unless its value was edited.
* Without the annotation nothing is known about earlier writes, and existing values stay.
* The edits of a record, which tells others what a server is, are not kept (`keep_edits`): neither binary data nor the mark
  `immutable`, for which the record is created again.
* A deleted ConfigMap is created again. Nothing is written when nothing changes.
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
from mooring.apimachinery.options import DeleteOptions, WriteOptions
from mooring.apimachinery.schema import Obj
from mooring.errors import AlreadyExistsError, ConflictError, NotFoundError
from mooring.registry.store import Registry

log = logging.getLogger("mooring.plane")

LAST_WRITTEN = "mooring.dev/last-written"


@dataclass(frozen=True, slots=True)
class Merged:
    """The ConfigMap to write, None when it is up to date, and the keys whose edited values differ from those of the server."""

    obj: Obj | None
    edited: tuple[str, ...] = ()


def merged(existing: Obj | None, wanted: Obj, *, keep_edits: bool = True) -> Merged:
    """Merge the ConfigMap of a server into the stored one."""
    wanted_data: Mapping[str, str] = wanted["data"]
    if existing is None:
        return Merged(_with_digests(wanted, {key: _digest(value) for key, value in wanted_data.items()}))
    data = dict(existing.get("data") or {})
    written = _last_written_digests(existing) if keep_edits else {key: _digest(value) for key, value in data.items()}
    digests: dict[str, str] = {}
    edited: list[str] = []
    for key, value in wanted_data.items():
        last, current = written.get(key), data.get(key)
        untouched = current == value or (_digest(current) == last if current is not None else last is None)
        if untouched:
            data[key], digests[key] = value, _digest(value)
        else:
            edited.append(key)
            if last is not None:
                digests[key] = last
    for key in written.keys() - wanted_data.keys():
        if key in data and _digest(data[key]) == written[key]:
            del data[key]
    kept = existing if keep_edits else {key: value for key, value in existing.items() if key != "binaryData"}
    changed = _with_digests({**kept, "data": data}, digests)
    same = data == (existing.get("data") or {}) and digests == _last_written_digests(existing)
    return Merged(None if same else changed, tuple(edited))


async def publish(
    registry: Registry,
    wanted: Obj,
    change: Change,
    complete: Callable[[Obj], Obj] = lambda obj: obj,
    *,
    keep_edits: bool = True,
) -> None:
    """Create the ConfigMap `wanted`, or bring it up to date. `complete` adds data that depend on the merged ConfigMap.

    Raises ApiError, StorageError.
    """
    kind = BY_PLURAL["configmaps"]
    namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
    existing: Any = registry.views["configmaps"].get(name, namespace)
    found = merged(existing, wanted, keep_edits=keep_edits)
    for key in found.edited:
        log.warning(
            "the ConfigMap %s/%s was edited: its %s stays as it is, and does not follow this server's settings",
            namespace, name, key,
        )  # fmt: skip
    if found.obj is None:
        return
    is_fixed = existing is not None and existing.get("immutable") and not keep_edits
    to_write = merged(None, wanted).obj if is_fixed else found.obj
    assert to_write is not None
    try:
        if is_fixed:
            await registry.writer.delete(kind, namespace, name, DeleteOptions(uid=existing["metadata"]["uid"]), change)
        if existing is None or is_fixed:
            await registry.writer.create(kind, namespace, complete(to_write), change, WriteOptions())
        else:
            await registry.writer.update(kind, namespace, name, complete(to_write), change, WriteOptions())
    except (AlreadyExistsError, ConflictError, NotFoundError):
        return  # another server of this cluster wrote it, with the same content


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


def _last_written_digests(config_map: Obj) -> dict[str, str]:
    """Return the digests of the annotation, none when it is missing or not readable."""
    try:
        value = json.loads((config_map["metadata"].get("annotations") or {}).get(LAST_WRITTEN, "{}"))
    except ValueError:
        return {}
    if not isinstance(value, dict):
        return {}
    return {key: digest for key, digest in value.items() if isinstance(digest, str)}


def _with_digests(config_map: Obj, digests: Mapping[str, str]) -> Obj:
    metadata = config_map["metadata"]
    annotations = {**(metadata.get("annotations") or {}), LAST_WRITTEN: json.dumps(digests, sort_keys=True)}
    return {**config_map, "metadata": {**metadata, "annotations": annotations}}
