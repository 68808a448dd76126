"""Managed fields: ownership of fields by managers, and the conflicts of server-side apply between them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Literal

import msgspec

from mooring.apimachinery.apply.fieldset import (
    FieldSet,
    difference,
    field_element,
    field_set_of,
    intersection,
    parse_field_set,
    path_text,
    paths,
    sorted_field_set,
    union,
    union_all,
    unrelated,
)
from mooring.apimachinery.apply.structuredmerge import (
    Comparison,
    compare,
    field_set,
    merge,
    remove,
    with_enclosing_messages,
)
from mooring.apimachinery.codec.unmarshal import unmarshal
from mooring.apimachinery.codec.zerofields import complete
from mooring.apimachinery.schema import Message, Obj
from mooring.clock import rfc3339
from mooring.errors import MAX_FIELD_ERRORS, BadRequestError, Cause, ConflictError, Details

# Decide conflicts of server-side apply: changed fields that other managers own (409), and name the managers.
#
# Source: docs/protocol/server-side-apply.md.
#
# Rules kept here: an error names at most `MAX_FIELD_ERRORS` conflicts and counts the others. It is encoded on the event loop, which
# 33 000 conflicts in YAML held for 1.5 s.


@dataclass(frozen=True, slots=True, order=True)
class FieldOwner:
    """Manager and operation of an entry. `api_version` is empty for Apply: a manager applies one configuration, in any version."""

    operation: Literal["Apply", "Update"]
    name: str
    api_version: str = ""
    subresource: str = ""

    @property
    def identifier(self) -> str:
        """Text by which kube-apiserver identifies managers and sorts conflicts."""
        members = {"manager": self.name, "operation": self.operation, "apiVersion": self.api_version}
        members["subresource"] = self.subresource
        return json.dumps({key: value for key, value in members.items() if value}, separators=(",", ":"))

    def __str__(self) -> str:
        text = json.dumps(self.name, ensure_ascii=False)
        if self.subresource:
            text += f" with subresource {json.dumps(self.subresource, ensure_ascii=False)}"
        return f"{text} using {self.api_version}" if self.operation == "Update" else text


def find_conflicts(owned: Mapping[FieldOwner, FieldSet], changed: FieldSet) -> dict[FieldOwner, FieldSet]:
    """Return the changed fields that other managers own, by manager."""
    return {owner: found for owner, fields in owned.items() if (found := intersection(fields, changed))}


def conflict_error(found: Mapping[FieldOwner, FieldSet]) -> ConflictError:
    """Return the 409 that names conflicting fields and their managers, in kube-apiserver's words."""
    count = 0
    listed: list[tuple[FieldOwner, list[str]]] = []
    for manager in sorted(found, key=lambda manager: manager.identifier):
        places = [path_text(path) for path in islice(paths(found[manager]), max(0, MAX_FIELD_ERRORS - count))]
        if places:
            listed.append((manager, places))
        count += sum(1 for _ in paths(found[manager]))
    if count == 1:
        message = f"Apply failed with 1 conflict: conflict with {listed[0][0]}: {listed[0][1][0]}"
    else:
        conflicts = "\n".join(
            "\n".join([f"conflicts with {who}:", *(f"- {path}" for path in at)]) for who, at in listed
        )
        more = f"\nand {count - MAX_FIELD_ERRORS} more" if count > MAX_FIELD_ERRORS else ""
        message = f"Apply failed with {count} conflicts: {conflicts}{more}"
    causes = tuple(
        Cause("FieldManagerConflict", f"conflict with {manager}", place)
        for manager, places in listed
        for place in places
    )
    return ConflictError(message, Details(causes=causes))


# Managed fields: ownership of fields by managers, and `metadata.managedFields`.
#
# Rules kept here (docs/protocol/server-side-apply.md; the merge algorithm is that of structured-merge-diff):
# * There is one entry for each manager, operation, subresource and, for updates, apiVersion. The fields that an update changes
#   are owned by its manager alone. The fields that it removes have no owner.
# * Applying merges the configuration into the object. A field that this manager applied before and now leaves out is removed,
#   unless another manager owns it. A changed field that another manager owns is a conflict (409); `force` takes it over. A field
#   that is applied with its present value is shared.
# * Tracking of an object begins with its creation by a client, or else with its first apply (docs/adr/0013). The fields that an
#   untracked object has at its first apply are owned by the update manager `before-first-apply`. Updates of an untracked object
#   record no managers.
# * Unchanged fields of kubectl's last client-side apply are owned by `kubectl-client-side-apply` instead. kubectl transfers the
#   fields of the manager that owns its annotation to its own Apply entry, and then removes those that it does not apply. Fields
#   that the server added (a Pod's token volume, a Service's address) must not be among them. Fields that the server added to an
#   item of kubectl have no owner, so that the item can be removed.
# * Beyond ten update managers the oldest are merged into `ancient-changes`.
# * A client that sends `[]` or `[{}]` ends tracking. Valid entries that a client sends, on the object itself, replace the old
#   ones; invalid ones are ignored. Entries of a version of the kind that is not served are dropped.
# * Fields that only the server sets have no owner.
# * For the move from client-side to server-side apply, the manager `kubectl` has no conflicts about unchanged fields of its
#   last-applied annotation, and the annotation follows the configurations that kubectl applies.

BEFORE_FIRST_APPLY = "before-first-apply"
CLIENT_SIDE_APPLY = "kubectl-client-side-apply"
"""Manager of the fields that `kubectl apply` without `--server-side` writes."""
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
"""Bytes of the annotation: the limit of all annotations together. A longer one is emptied, as kube-apiserver does."""
_ANNOTATION = field_set_of((field_element("metadata"), field_element("annotations"), field_element(LAST_APPLIED)))
_RESETS: tuple[list[Obj], ...] = ([], [{}])
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
SERVER_SET = field_set_of(
    (field_element("metadata"),), *((field_element("metadata"), field_element(name)) for name in _META)
)
"""Fields without owners."""


@dataclass(frozen=True, slots=True)
class OwnedFields:
    """Fields of one manager, with the apiVersion of their names and the time of the last change."""

    fields: FieldSet
    api_version: str
    time: str


Managed = Mapping[FieldOwner, OwnedFields]


@dataclass(frozen=True, slots=True)
class Author:
    """Manager, apiVersion, schema, subresource and time of one write."""

    name: str
    api_version: str
    schema: Message
    subresource: str
    now: datetime
    versions: tuple[str, ...] = ()
    """apiVersions with the same fields as `api_version`."""

    def has_fields_of(self, api_version: str) -> bool:
        """Return True for a version whose fields have the names of this schema."""
        return api_version == self.api_version or api_version in self.versions

    @property
    def time(self) -> str:
        """Time of the write in RFC 3339."""
        return rfc3339(self.now)


def parse_entries(entries: list[Obj]) -> Managed | None:
    """Return the managers of entries with their fields; None when an entry is invalid, or there are no entries."""
    managed: dict[FieldOwner, list[OwnedFields]] = {}
    try:
        for entry in entries:
            manager, owned = _parse_entry(entry)
            managed.setdefault(manager, []).append(owned)
    except ValueError:
        return None
    return {manager: _combine(parts) for manager, parts in managed.items()} or None


def _combine(parts: list[OwnedFields]) -> OwnedFields:
    """Return the fields of several entries, with the version and time of the newest."""
    newest = max(parts, key=lambda owned: owned.time)
    return OwnedFields(union_all(owned.fields for owned in parts), newest.api_version, newest.time)


def _parse_entry(entry: Obj) -> tuple[FieldOwner, OwnedFields]:
    operation, version = entry.get("operation"), entry.get("apiVersion")
    name, subresource = entry.get("manager", ""), entry.get("subresource", "")
    if operation not in ("Apply", "Update") or not version or entry.get("fieldsType") != "FieldsV1":
        raise ValueError("an entry has operation, apiVersion and fieldsType")
    if len(name) > MAX_NAME or not name.isprintable() or len(subresource) > MAX_SUBRESOURCE:
        raise ValueError("a manager's name is printable and short")
    manager = FieldOwner(operation, name, "" if operation == "Apply" else version, subresource)
    return manager, OwnedFields(parse_field_set(entry.get("fieldsV1", {})), version, entry.get("time", ""))


def format_entries(managed: Managed) -> list[Obj]:
    """Return `metadata.managedFields`: Apply before Update, the oldest first. Managers without fields are left out."""
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
            "fieldsV1": sorted_field_set(owned.fields),
            "subresource": manager.subresource,
        }
        entries.append({key: value for key, value in entry.items() if value})
    return entries


def without_times(entries: list[Obj]) -> list[Obj]:
    """Return entries without their times, in one order, to compare whether an entry changed otherwise."""
    bare = [{key: value for key, value in entry.items() if key != "time"} for entry in entries]
    return sorted(bare, key=lambda entry: json.dumps(entry, sort_keys=True))


def entries_of_creator(new: Obj, author: Author) -> list[Obj]:
    """Return the entries of a new object: its creator owns all fields of it."""
    owned = OwnedFields(_all_fields(new, author), author.api_version, author.time)
    return format_entries({_updater(author): owned})


def _all_fields(obj: Obj, author: Author) -> FieldSet:
    """Return the fields of an object that can have an owner."""
    nothing: Obj = {}
    complete(nothing, author.schema)
    changes = compare(nothing, obj, author.schema)
    return difference(union(changes.modified, changes.added), SERVER_SET)


def entries_after_update(old: Obj, new: Obj, sent: list[Obj] | None, author: Author) -> list[Obj]:
    """Return the entries of `new`, which replaces `old` and was sent with the entries `sent`, None without any. No entries: not
    tracked."""
    if sent in _RESETS and not author.subresource:
        return []
    replacement = parse_entries(sent) if sent and not author.subresource else None
    managed = _served(replacement or parse_entries(_entries(old)) or {}, author)
    if not managed:
        return []
    changes = compare(old, new, author.schema)
    taken = difference(union(changes.modified, changes.added), SERVER_SET)
    after = _without_changed(managed, changes)
    if taken:
        _grant(after, _updater(author), taken, author)
    return format_entries(_limit_updaters(after))


def _entries(obj: Obj) -> list[Obj]:
    entries: list[Obj] = obj.get("metadata", {}).get("managedFields", [])
    return entries


def _served(managed: Managed, author: Author) -> Managed:
    return {manager: owned for manager, owned in managed.items() if author.has_fields_of(owned.api_version)}


def _updater(author: Author) -> FieldOwner:
    return FieldOwner("Update", author.name, author.api_version, author.subresource)


def _grant(managed: dict[FieldOwner, OwnedFields], manager: FieldOwner, fields: FieldSet, author: Author) -> None:
    before = managed.get(manager)
    managed[manager] = OwnedFields(union(before.fields, fields) if before else fields, author.api_version, author.time)


def _without_changed(managed: Managed, changes: Comparison) -> dict[FieldOwner, OwnedFields]:
    """Return the fields of each manager without the changed, added and removed ones."""
    lost = union(union(changes.modified, changes.added), changes.removed)
    left = {
        manager: OwnedFields(difference(owned.fields, lost), owned.api_version, owned.time)
        for manager, owned in managed.items()
    }
    return {manager: owned for manager, owned in left.items() if owned.fields}


def _limit_updaters(managed: Managed) -> Managed:
    """Return at most ten update managers, all of the served version, with the oldest merged into one."""
    updaters = [manager for manager in managed if manager.operation == "Update"]
    over = len(updaters) - MAX_UPDATE_MANAGERS
    if over <= 0:
        return managed
    ancient = FieldOwner("Update", ANCIENT_CHANGES, updaters[0].api_version)
    oldest = sorted(updaters, key=lambda manager: (managed[manager].time, manager))[: over + 1]
    merged = {*oldest, ancient}
    result = {manager: owned for manager, owned in managed.items() if manager not in merged}
    result[ancient] = _combine([owned for manager, owned in managed.items() if manager in merged])
    return result


def apply_configuration(live: Obj, config: Obj, author: Author, *, force: bool) -> tuple[Obj, list[Obj]]:
    """Return `live` (`{}` for a new object) after `config` is applied, without managedFields, and its entries.

    Raises ConflictError for fields of other managers, BadRequestError for list items without keys.
    """
    managed = _served(parse_entries(_entries(live)) or {}, author)
    if live and not managed:
        managed = _begin_tracking(live, author)
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
            raise conflict_error(left) from None
        # All of the conflicts are about unchanged fields of kubectl's annotation, which it may take over.
        new, managed = _apply(live, config, managed, author, True)
    if author.name == KUBECTL:
        new = _update_annotation(new, config)
    return new, format_entries(managed)


def _begin_tracking(live: Obj, author: Author) -> Managed:
    """Return the owners of the fields of an object that was not tracked until now."""
    everything = _all_fields(live, author)
    last_applied, unchanged = _last_applied(live, author)
    parts = {BEFORE_FIRST_APPLY: everything}
    if unchanged:
        changed = intersection(everything, difference(last_applied, unchanged))
        parts = {
            CLIENT_SIDE_APPLY: union(unchanged, _ANNOTATION),
            BEFORE_FIRST_APPLY: union(unrelated(everything, union(last_applied, _ANNOTATION)), changed),
        }
    return {
        FieldOwner("Update", name, author.api_version, author.subresource): OwnedFields(
            fields, author.api_version, author.time
        )
        for name, fields in parts.items()
    }


class _Conflicts(Exception):  # noqa: N818 - not an error yet: kubectl may own these fields by its annotation
    """Changed fields of other managers."""

    def __init__(self, found: Mapping[FieldOwner, FieldSet]) -> None:
        super().__init__()
        self.found = found


def _apply(live: Obj, config: Obj, managed: Managed, author: Author, force: bool) -> tuple[Obj, Managed]:
    schema = author.schema
    manager = FieldOwner("Apply", author.name, "", author.subresource)
    others = {other: owned for other, owned in managed.items() if other != manager}
    # Before the merge, which cannot match items without keys.
    configured = field_set(config, schema, strict=True)
    merged = merge(live, config, schema)
    last = managed.get(manager)
    if last is not None:
        still_owned = union_all([configured, *(owned.fields for owned in others.values())])
        merged = _prune(merged, last.fields, still_owned, schema)
    changes = compare(live, merged, schema)
    changed = union(changes.modified, changes.added)
    conflicts = find_conflicts({other: owned.fields for other, owned in others.items()}, changed)
    if conflicts and not force:
        raise _Conflicts(conflicts)
    after = _without_changed(others, changes)
    after[manager] = OwnedFields(difference(configured, SERVER_SET), author.api_version, author.time)
    return merged, after


def _prune(merged: Obj, last: FieldSet, still_owned: FieldSet, schema: Message) -> Obj:
    """Return `merged` without the fields in `last` that are not in `still_owned`. Fields without an owner stay unless their
    parent goes."""
    last, still_owned = with_enclosing_messages(last, schema), with_enclosing_messages(still_owned, schema)
    everything = with_enclosing_messages(field_set(merged, schema), schema)
    left = with_enclosing_messages(field_set(remove(merged, last, schema), schema), schema)
    kept = remove(merged, difference(everything, union(left, still_owned)), schema)
    remaining = with_enclosing_messages(field_set(kept, schema), schema)
    return remove(merged, intersection(difference(everything, remaining), last), schema)


def _last_applied(live: Obj, author: Author) -> tuple[FieldSet, FieldSet]:
    """Return the fields of the last client-side apply, and those of them that are unchanged."""
    text = _annotation(live)
    try:
        config: Any = msgspec.json.decode(text) if text else None
        if not isinstance(config, dict) or not author.has_fields_of(config.get("apiVersion", "")):
            return {}, {}
        unmarshal(config, author.schema)
    # Any client may write the annotation. One that cannot be read takes nothing over.
    except (ValueError, RecursionError, BadRequestError):
        return {}, {}
    changes = compare(live, config, author.schema)
    differing = union(union(changes.modified, changes.added), changes.removed)
    fields = difference(field_set(config, author.schema), SERVER_SET)
    return fields, difference(fields, differing)


def _annotation(obj: Obj) -> str:
    text: str = (obj["metadata"].get("annotations") or {}).get(LAST_APPLIED, "") if obj else ""
    return text


def _update_annotation(new: Obj, config: Obj) -> Obj:
    """Return `new` with the applied configuration in kubectl's annotation, if it has one."""
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
