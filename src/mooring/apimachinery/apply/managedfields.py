"""Who manages which fields of an object: `metadata.managedFields`, and applying a configuration by it.

Rules kept here (docs/protocol/server-side-apply.md; the merge algorithm is that of structured-merge-diff):
* One entry for each manager, operation, subresource and, for updates, apiVersion. What an update changes becomes its manager's and
  nobody else's; what it removes is nobody's.
* Applying merges the configuration into the object. What this manager applied before and now leaves out is removed, unless
  another manager owns it. A field that would change and that another manager owns is a conflict (409); `force` takes it.
  A field applied with the value it has is shared.
* An object that nobody tracks (docs/adr/0013) is tracked from its first apply on; what it had until then belongs to the
  update manager `before-first-apply`. Updates of untracked objects record nothing.
* What kubectl's client-side apply said last and still is so is `kubectl-client-side-apply`'s instead: kubectl hands over to its
  own Apply entry whatever the owner of its annotation has, and then removes what it does not say. What the server put into the
  object (a Pod's token volume, a Service's address) must not be among it. What the server put into an item that kubectl said
  is nobody's, so that the item can go.
* More than ten update managers: the oldest are merged into `ancient-changes`.
* A client that sends `[{}]` ends tracking; one that sends entries that can be read, on the object itself, replaces the old ones;
  anything else leaves them as they are. Entries of a version of the kind that is not served are dropped.
* Fields that only the server sets are nobody's.
* kubectl's move from client-side to server-side apply: the manager `kubectl` does not conflict about what its own
  last-applied annotation says and still is so, and the annotation, once there, follows what kubectl applies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import msgspec

from mooring.apimachinery.apply.fieldset import (
    FieldSet,
    difference,
    field,
    intersection,
    of_paths,
    outside,
    parse,
    path_text,
    paths,
    printed,
    union,
    union_all,
)
from mooring.apimachinery.apply.structuredmerge import Difference as Changes
from mooring.apimachinery.apply.structuredmerge import compare, field_set, merge, remove, with_messages
from mooring.apimachinery.codec.unmarshal import unmarshal
from mooring.apimachinery.codec.zerofields import complete
from mooring.apimachinery.schema import Message, Obj
from mooring.clock import rfc3339
from mooring.errors import BadRequestError, Cause, ConflictError, Details

BEFORE_FIRST_APPLY = "before-first-apply"
CLIENT_SIDE_APPLY = "kubectl-client-side-apply"
"""The manager of what `kubectl apply` without `--server-side` writes."""
ANCIENT_CHANGES = "ancient-changes"
MAX_UPDATE_MANAGERS = 10
"""Update entries of one object: kube-apiserver's cap, so that the metadata of a busy object stays bounded."""
MAX_NAME = 128
"""Characters of a manager's name: those of the fieldManager parameter."""
MAX_SUBRESOURCE = 256
"""Characters of a subresource: kube-apiserver's limit."""
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
KUBECTL = "kubectl"
MAX_LAST_APPLIED = 256 * 1024
"""Bytes of the annotation: what all annotations together may weigh. A longer one is emptied, as kube-apiserver does."""
_ANNOTATION = of_paths((field("metadata"), field("annotations"), field(LAST_APPLIED)))
_RESET: list[Obj] = [{}]
_META = (
    "creationTimestamp",
    "generation",
    "managedFields",
    "name",
    "namespace",
    "resourceVersion",
    "selfLink",
    "uid",
)
SERVER_SET = of_paths((field("metadata"),), *((field("metadata"), field(name)) for name in _META))
"""Fields that nobody owns."""


@dataclass(frozen=True, slots=True, order=True)
class FieldOwner:
    """Whose an entry is. `api_version` is empty for Apply: a manager applies one configuration, in whatever version."""

    operation: Literal["Apply", "Update"]
    name: str
    api_version: str = ""
    subresource: str = ""

    @property
    def identifier(self) -> str:
        """The text by which kube-apiserver knows a manager, and sorts those that it tells about."""
        said = {"manager": self.name, "operation": self.operation, "apiVersion": self.api_version}
        said["subresource"] = self.subresource
        return json.dumps({key: value for key, value in said.items() if value}, separators=(",", ":"))

    def __str__(self) -> str:
        text = json.dumps(self.name, ensure_ascii=False)
        if self.subresource:
            text += f" with subresource {json.dumps(self.subresource, ensure_ascii=False)}"
        return f"{text} using {self.api_version}" if self.operation == "Update" else text


@dataclass(frozen=True, slots=True)
class Owned:
    """What a manager owns, since when, and in which version of the kind it was said."""

    fields: FieldSet
    api_version: str
    time: str


Managed = Mapping[FieldOwner, Owned]


@dataclass(frozen=True, slots=True)
class Author:
    """Who writes what: the manager's name, the kind's apiVersion and schema, the subresource, and when."""

    name: str
    api_version: str
    schema: Message
    subresource: str
    now: datetime

    @property
    def time(self) -> str:
        return rfc3339(self.now)


def read(entries: list[Obj]) -> Managed | None:
    """What entries say; None when one of them cannot be read, or there are none."""
    said: dict[FieldOwner, list[Owned]] = {}
    try:
        for entry in entries:
            manager, owned = _read(entry)
            said.setdefault(manager, []).append(owned)
    except ValueError:
        return None
    return {manager: _together(parts) for manager, parts in said.items()} or None


def _together(parts: list[Owned]) -> Owned:
    """Everything that several entries own, since the last of them."""
    newest = max(parts, key=lambda owned: owned.time)
    return Owned(union_all(owned.fields for owned in parts), newest.api_version, newest.time)


def _read(entry: Obj) -> tuple[FieldOwner, Owned]:
    operation, version = entry.get("operation"), entry.get("apiVersion")
    name, subresource = entry.get("manager", ""), entry.get("subresource", "")
    if operation not in ("Apply", "Update") or not version or entry.get("fieldsType") != "FieldsV1":
        raise ValueError("an entry says its operation, apiVersion and fieldsType")
    if len(name) > MAX_NAME or not name.isprintable() or len(subresource) > MAX_SUBRESOURCE:
        raise ValueError("a manager's name is printable and short")
    manager = FieldOwner(operation, name, "" if operation == "Apply" else version, subresource)
    return manager, Owned(parse(entry.get("fieldsV1", {})), version, entry.get("time", ""))


def printed_entries(managed: Managed) -> list[Obj]:
    """`metadata.managedFields`: Apply before Update, the oldest first. Managers that own nothing are left out."""
    entries = []
    for manager, owned in sorted(managed.items(), key=lambda item: (item[0].operation, item[1].time, item[0])):
        if not owned.fields:
            continue
        entry = {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": owned.api_version,
            "time": owned.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": printed(owned.fields),
            "subresource": manager.subresource,
        }
        entries.append({key: value for key, value in entry.items() if value})
    return entries


def timeless(entries: list[Obj]) -> list[Obj]:
    """Entries without their times and order: what tells whether anything was really changed."""
    bare = [{key: value for key, value in entry.items() if key != "time"} for entry in entries]
    return sorted(bare, key=lambda entry: json.dumps(entry, sort_keys=True))


def updated(old: Obj, new: Obj, sent: list[Obj] | None, author: Author) -> list[Obj]:
    """The entries of `new`, which replaces `old` and says `sent` about them. Empty: not tracked."""
    if sent == _RESET and not author.subresource:
        return []
    said = read(sent) if sent and not author.subresource else None
    managed = _served(said or read(_entries(old)) or {}, author)
    if not managed:
        return []
    changes = compare(old, new, author.schema)
    taken = difference(union(changes.modified, changes.added), SERVER_SET)
    after = _taken(managed, changes)
    if taken:
        _grant(after, _updater(author), taken, author)
    return printed_entries(_capped(after))


def _entries(obj: Obj) -> list[Obj]:
    entries: list[Obj] = obj.get("metadata", {}).get("managedFields", [])
    return entries


def _served(managed: Managed, author: Author) -> Managed:
    return {manager: owned for manager, owned in managed.items() if owned.api_version == author.api_version}


def _updater(author: Author) -> FieldOwner:
    return FieldOwner("Update", author.name, author.api_version, author.subresource)


def _grant(managed: dict[FieldOwner, Owned], manager: FieldOwner, fields: FieldSet, author: Author) -> None:
    before = managed.get(manager)
    managed[manager] = Owned(union(before.fields, fields) if before else fields, author.api_version, author.time)


def _taken(managed: Managed, changes: Changes) -> dict[FieldOwner, Owned]:
    """What is left to each when what changed or went is no longer theirs."""
    lost = union(union(changes.modified, changes.added), changes.removed)
    left = {
        manager: Owned(difference(owned.fields, lost), owned.api_version, owned.time)
        for manager, owned in managed.items()
    }
    return {manager: owned for manager, owned in left.items() if owned.fields}


def _capped(managed: Managed) -> Managed:
    """At most ten update managers, all of the served version: the oldest become one."""
    updaters = [manager for manager in managed if manager.operation == "Update"]
    over = len(updaters) - MAX_UPDATE_MANAGERS
    if over <= 0:
        return managed
    ancient = FieldOwner("Update", ANCIENT_CHANGES, updaters[0].api_version)
    oldest = sorted(updaters, key=lambda manager: (managed[manager].time, manager))[: over + 1]
    merged = {*oldest, ancient}
    result = {manager: owned for manager, owned in managed.items() if manager not in merged}
    result[ancient] = _together([owned for manager, owned in managed.items() if manager in merged])
    return result


def applied(live: Obj, config: Obj, author: Author, *, force: bool) -> tuple[Obj, list[Obj]]:
    """The object after `config` was applied to `live` (`{}` for one that is not there yet), and its entries.

    Raises ConflictError for fields of other managers, BadRequestError for list items without keys. The object shows no entries.
    """
    managed = _served(read(_entries(live)) or {}, author)
    if live and not managed:
        managed = _begun(live, author)
    if "managedFields" in live.get("metadata", {}):
        live = live | {"metadata": {key: value for key, value in live["metadata"].items() if key != "managedFields"}}
    try:
        new, managed = _apply(live, config, managed, author, force)
    except _Conflicts as conflicts:
        left = conflicts.found
        if author.name == KUBECTL:
            _, allowed = _last_applied(live, author)
            left = {manager: rest for manager, fields in left.items() if (rest := difference(fields, allowed))}
        if left:
            raise _conflict(left) from None
        new, managed = _apply(live, config, managed, author, True)
    if author.name == KUBECTL:
        new = _annotated(new, config)
    return new, printed_entries(managed)


def _begun(live: Obj, author: Author) -> Managed:
    """Who owns what of an object that was not tracked until now."""
    nothing: Obj = {}
    complete(nothing, author.schema)
    changes = compare(nothing, live, author.schema)
    everything = difference(union(changes.modified, changes.added), SERVER_SET)
    said, still = _last_applied(live, author)
    parts = {BEFORE_FIRST_APPLY: everything}
    if still:
        changed = intersection(everything, difference(said, still))
        parts = {
            CLIENT_SIDE_APPLY: union(still, _ANNOTATION),
            BEFORE_FIRST_APPLY: union(outside(everything, union(said, _ANNOTATION)), changed),
        }
    return {
        FieldOwner("Update", name, author.api_version, author.subresource): Owned(
            fields, author.api_version, author.time
        )
        for name, fields in parts.items()
    }


class _Conflicts(Exception):  # noqa: N818 - not an error yet: kubectl may have said before what it says now
    """Fields that would change and that others own."""

    def __init__(self, found: Mapping[FieldOwner, FieldSet]) -> None:
        super().__init__()
        self.found = found


def _apply(live: Obj, config: Obj, managed: Managed, author: Author, force: bool) -> tuple[Obj, Managed]:
    schema = author.schema
    manager = FieldOwner("Apply", author.name, "", author.subresource)
    others = {other: owned for other, owned in managed.items() if other != manager}
    asked = field_set(config, schema, strict=True)
    merged = merge(live, config, schema)
    last = managed.get(manager)
    if last is not None:
        held = union_all([asked, *(owned.fields for owned in others.values())])
        merged = _pruned(merged, last.fields, held, schema)
    changes = compare(live, merged, schema)
    changed = union(changes.modified, changes.added)
    conflicts = {other: found for other, owned in others.items() if (found := intersection(owned.fields, changed))}
    if conflicts and not force:
        raise _Conflicts(conflicts)
    after = _taken(others, changes)
    after[manager] = Owned(difference(asked, SERVER_SET), author.api_version, author.time)
    return merged, after


def _pruned(merged: Obj, last: FieldSet, held: FieldSet, schema: Message) -> Obj:
    """`merged` without what is in `last` and not in `held`. What nobody owns stays, unless it lies inside what goes."""
    last, held = with_messages(last, schema), with_messages(held, schema)
    everything = with_messages(field_set(merged, schema), schema)
    left = with_messages(field_set(remove(merged, last, schema), schema), schema)
    kept = remove(merged, difference(everything, union(left, held)), schema)
    there = with_messages(field_set(kept, schema), schema)
    return remove(merged, intersection(difference(everything, there), last), schema)


def _conflict(found: Mapping[FieldOwner, FieldSet]) -> ConflictError:
    managers = sorted(found, key=lambda manager: manager.identifier)
    listed = [(manager, [path_text(path) for path in paths(found[manager])]) for manager in managers]
    count = sum(len(places) for _, places in listed)
    if count == 1:
        message = f"Apply failed with 1 conflict: conflict with {listed[0][0]}: {listed[0][1][0]}"
    else:
        told = "\n".join("\n".join([f"conflicts with {who}:", *(f"- {path}" for path in at)]) for who, at in listed)
        message = f"Apply failed with {count} conflicts: {told}"
    causes = tuple(
        Cause("FieldManagerConflict", f"conflict with {manager}", place)
        for manager, places in listed
        for place in places
    )
    return ConflictError(message, Details(causes=causes))


def _last_applied(live: Obj, author: Author) -> tuple[FieldSet, FieldSet]:
    """What client-side apply said last, and what of it still is so."""
    text = _annotation(live)
    try:
        said: Any = msgspec.json.decode(text) if text else None
        if not isinstance(said, dict) or said.get("apiVersion") != author.api_version:
            return {}, {}
        unmarshal(said, author.schema)
    except (ValueError, RecursionError, BadRequestError):
        return {}, {}
    changes = compare(live, said, author.schema)
    differing = union(union(changes.modified, changes.added), changes.removed)
    fields = difference(field_set(said, author.schema), SERVER_SET)
    return fields, difference(fields, differing)


def _annotation(obj: Obj) -> str:
    text: str = (obj["metadata"].get("annotations") or {}).get(LAST_APPLIED, "") if obj else ""
    return text


def _annotated(new: Obj, config: Obj) -> Obj:
    """`new` with what was applied in kubectl's annotation, if it has one."""
    if not _annotation(new):
        return new
    metadata = dict(config["metadata"])
    metadata["annotations"] = {
        key: value for key, value in metadata.get("annotations", {}).items() if key != LAST_APPLIED
    }
    if not metadata["annotations"]:
        del metadata["annotations"]
    text = json.dumps(config | {"metadata": metadata}, separators=(",", ":"), sort_keys=True, ensure_ascii=False) + "\n"
    text = text if len(text.encode()) <= MAX_LAST_APPLIED else ""
    annotations = new["metadata"]["annotations"] | {LAST_APPLIED: text}
    return new | {"metadata": new["metadata"] | {"annotations": annotations}}
