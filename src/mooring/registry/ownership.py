"""Server-side apply inside a write: who writes, what of a configuration counts, which managedFields the new object gets.

Rules kept here:
* The sets and the merge are `mooring.apimachinery.apply.managedfields`; this file says when they are asked. An object is tracked
  from its first apply on (docs/adr/0013): every other write costs two look-ups.
* Entries are computed from what is about to be stored, after strategy and admission: whoever caused a change owns it.
* Entries tell fields in the form in which the object is stored, and name its version, also when it came in another form.
* A write that would change nothing but times changes nothing (docs/protocol/server-side-apply.md).
"""

from __future__ import annotations

from mooring.api.kind import Change, Kind
from mooring.apimachinery.apply.applyconfiguration import settled
from mooring.apimachinery.apply.managedfields import Author, applied, timeless, updated
from mooring.apimachinery.options import WriteOptions
from mooring.apimachinery.schema import Obj

IN_PROCESS = "mooring"
"""The field manager of writes that name none: those of the server's own controllers."""


def author(kind: Kind, change: Change, options: WriteOptions, subresource: str) -> Author:
    """Who writes, as entries will say it."""
    resource = kind.storage_kind.resource
    name = options.field_manager or IN_PROCESS
    return Author(name, resource.api_version, resource.schema, subresource, change.now)


def opinion(kind: Kind, config: Obj, subresource: str) -> Obj:
    """What of a configuration counts: a subresource has no say in spec, nor the object in a status with a subresource."""
    if subresource:
        ignored = "spec"
    elif "status" in (kind.subresources or {}):
        ignored = "status"
    else:
        return config
    return {key: value for key, value in config.items() if key != ignored}


def merged(kind: Kind, live: Obj, config: Obj, writer: Author, force: bool) -> tuple[Obj, list[Obj]]:
    """A new object, which belongs to the caller, and its entries. `live` is empty when there is none. Raises ApiError."""
    new, entries = applied(live, config, writer, force=force)
    return settled(new, kind.storage_kind.resource.schema), entries


def track(new: Obj, old: Obj, sent: list[Obj] | None, entries: list[Obj] | None, writer: Author) -> None:
    """Give `new`, in place, the managedFields it has when it replaces `old`. `entries`: those of an apply."""
    if entries is None:
        entries = updated(old, new, sent, writer)
    if not entries:
        return
    kept = old["metadata"].get("managedFields")
    if kept and timeless(entries) == timeless(kept) and _shown(new) == _shown(old):
        entries = kept
    new["metadata"]["managedFields"] = entries


def _shown(obj: Obj) -> Obj:
    """An object without what each write would change."""
    hidden = ("managedFields", "resourceVersion")
    return obj | {"metadata": {key: value for key, value in obj["metadata"].items() if key not in hidden}}
