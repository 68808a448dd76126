"""ConfigMaps that a server keeps up to date and administrators may edit: a three-way merge by key.

Rules kept here:
* The annotation `mooring.dev/last-written` holds the SHA-256 of each value as a server last wrote it. A value that still has this
  digest follows the settings of the server. Any other value was edited by an administrator, and stays.
* A key that an administrator removed is not added again. A key that no server ever wrote is added. A key that the server no longer
  writes is removed, unless its value was edited.
* Without the annotation nothing is known about earlier writes, and existing values stay.
* What an edit leaves to the server is changed by `follow`: the cluster's own CAs in cluster-info. An edited value that then equals
  the server's own is not edited any more. The annotation `mooring.dev/last-kept` holds the digest of each value that was kept, so
  that one server logs an edit once, and each start repeats it.
* The edits of a record, which tells others what a server is, are not kept (`keep_edits`): neither binary data nor the mark
  `immutable`, for which the record is created again.
* A deleted ConfigMap is created again. Nothing is written when nothing changes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.options import DeleteOptions, WriteOptions
from mooring.apimachinery.schema import Obj
from mooring.errors import AlreadyExistsError, ConflictError, NotFoundError
from mooring.registry.store import Registry
from mooring.trust.discovery.editedclusterinfo import LAST_KEPT, LAST_WRITTEN, digests_in, value_digest

log = logging.getLogger("mooring.controlplane")

MAX_ATTEMPTS = 5
"""Conflicts in a row after which a write is left to the other writers."""
Follow = Mapping[str, Callable[[str], str]]
"""By key, a function that returns an edited value with what in it follows the server."""
NOTHING: Follow = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Merged:
    """The ConfigMap to write, None when it is up to date, and the keys whose edited values differ from those of the server."""

    obj: Obj | None
    edited: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    """Those of `edited` that follow, and that no server has kept yet."""


def merged(existing: Obj | None, wanted: Obj, *, keep_edits: bool = True, follow: Follow = NOTHING) -> Merged:
    """Merge the ConfigMap of a server into the stored one."""
    wanted_data: Mapping[str, str] = wanted["data"]
    if existing is None:
        return Merged(_annotated(wanted, wanted, {key: value_digest(value) for key, value in wanted_data.items()}, {}))
    before: Mapping[str, str] = existing.get("data") or {}
    data = dict(before)
    written = digests_in(existing, LAST_WRITTEN) if keep_edits else {key: value_digest(data[key]) for key in data}
    digests: dict[str, str] = {}
    edited: list[str] = []
    for key, value in wanted_data.items():
        last, current = written.get(key), data.get(key)
        untouched = current == value or (value_digest(current) == last if current is not None else last is None)
        if not untouched and current is not None and key in follow:
            data[key] = follow[key](current)
            untouched = data[key] == value
        if untouched:
            data[key], digests[key] = value, value_digest(value)
        else:
            edited.append(key)
            if last is not None:
                digests[key] = last
    for key in written.keys() - wanted_data.keys():
        if key in data and value_digest(data[key]) == written[key]:
            del data[key]
    rest = existing if keep_edits else {key: value for key, value in existing.items() if key != "binaryData"}
    kept = {key: value_digest(data.get(key)) for key in edited if key in follow}
    changed = _annotated({**rest, "data": data}, wanted, digests, kept)
    same = data == before and changed["metadata"] == existing["metadata"]
    kept_before = digests_in(existing, LAST_KEPT)
    new = tuple(key for key in kept if kept_before.get(key) != value_digest(before.get(key)))
    return Merged(None if same else changed, tuple(edited), new)


async def publish(
    registry: Registry,
    wanted: Obj,
    change: Change,
    complete: Callable[[Obj], Obj] = lambda obj: obj,
    *,
    keep_edits: bool = True,
    follow: Follow = NOTHING,
    logged: dict[tuple[str, str], str],
) -> tuple[str, ...]:
    """Create the ConfigMap `wanted`, or bring it up to date. Return the keys whose edits were logged.

    `complete` adds data that depend on the merged ConfigMap. `logged` are digests of the values that this process has logged: it
    logs another value of the same key only where no server has kept it. Raises ApiError, StorageError.
    """
    namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
    logged_keys: set[str] = set()
    for _ in range(MAX_ATTEMPTS):
        existing: Obj | None = registry.views["configmaps"].get(name, namespace)
        found = merged(existing, wanted, keep_edits=keep_edits, follow=follow)
        for key in found.edited:
            digest = value_digest(((existing or {}).get("data") or {}).get(key))
            if (name, key) not in logged or (key in found.new and logged[name, key] != digest):
                logged[name, key] = digest
                logged_keys.add(key)
                log.warning(
                    "the ConfigMap %s/%s was edited: its %s stays as it is, and does not follow this server's settings%s",
                    namespace, name, key, "; only the CAs of the cluster in it are kept up to date" if key in follow else "",
                )  # fmt: skip
        if existing is not None and existing.get("immutable") and keep_edits and found.obj is not None:
            uid: str = existing["metadata"]["uid"]
            if logged.get((name, "")) != uid:
                logged[name, ""] = uid
                log.warning(
                    "the ConfigMap %s/%s is immutable, and stays as it is: delete it to have it made again",
                    namespace,
                    name,
                )
            break
        if found.obj is None or await _write(registry, existing, wanted, found.obj, change, complete, keep_edits):
            break
        # Another server, or the signer of tokens, was faster: merge into what it wrote.
        await registry.reader.fresh()
    return tuple(logged_keys)


async def _write(
    registry: Registry,
    existing: Obj | None,
    wanted: Obj,
    changed: Obj,
    change: Change,
    complete: Callable[[Obj], Obj],
    keep_edits: bool,
) -> bool:
    """Write a merged ConfigMap over the one that was read. Return False when another writer was faster."""
    kind = BY_PLURAL["configmaps"]
    namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
    try:
        if existing is not None and existing.get("immutable") and not keep_edits:
            await registry.writer.delete(kind, namespace, name, DeleteOptions(uid=existing["metadata"]["uid"]), change)
            existing, changed = None, merged(None, wanted).obj or changed
        if existing is None:
            await registry.writer.create(kind, namespace, complete(changed), change, WriteOptions())
        else:
            await registry.writer.update(kind, namespace, name, complete(changed), change, WriteOptions())
    except (AlreadyExistsError, ConflictError, NotFoundError):
        return False
    return True


def _annotated(config_map: Obj, wanted: Obj, digests: Mapping[str, str], kept: Mapping[str, str]) -> Obj:
    """Return a ConfigMap with the annotations of `wanted` and the digests of its values."""
    metadata = config_map["metadata"]
    annotations = {**(metadata.get("annotations") or {}), **(wanted["metadata"].get("annotations") or {})}
    annotations[LAST_WRITTEN] = json.dumps(digests, sort_keys=True)
    annotations.pop(LAST_KEPT, None)
    if kept:
        annotations[LAST_KEPT] = json.dumps(kept, sort_keys=True)
    return {**config_map, "metadata": {**metadata, "annotations": annotations}}
