"""Server-side apply within a write, and writes that the server makes itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from mooring.api.kind import Change, Kind
from mooring.api.kinds import versions_with_same_fields
from mooring.apimachinery.apply.applyconfiguration import drop_empty_zeros
from mooring.apimachinery.apply.managedfields import (
    Author,
    apply_configuration,
    entries_after_update,
    entries_of_creator,
    without_times,
)
from mooring.apimachinery.options import WriteOptions
from mooring.apimachinery.schema import Obj
from mooring.errors import StorageError
from mooring.storage.contract import Entry, KeyExistsError, RevisionMismatchError

# Handle server-side apply within a write: the field manager, the effective configuration, the managedFields of the new object.
#
# Conflicts are decided in `mooring.apimachinery.apply.managedfields`, on behalf of `mooring.apimachinery.apply.managedfields`,
# which merges.
#
# Rules kept here:
# * A client that creates an object owns what it sent, and the defaults. What strategy and admission add to a new object has no
#   owner: otherwise a tool that takes the fields of the creator over, and does not apply them, would remove them.
# * Objects of kinds that no tool applies, and those that the server itself creates, have managedFields from their first apply on
#   (docs/adr/0013). Until then a write costs two look-ups.
# * After an update, entries are computed from the object that is about to be stored, after strategy and admission: the manager of a
#   write owns all changes that it caused.
# * Entries name the fields of the form in which the object is stored, also when the request used another form. They name the
#   version of the request if its fields are the same, otherwise that of the stored form.
# * A write that would change nothing but times changes nothing (docs/protocol/server-side-apply.md).

IN_PROCESS = "mooring"
"""Field manager of writes that name none: those of the server's own controllers."""


def author(kind: Kind, change: Change, options: WriteOptions, subresource: str) -> Author:
    """Return the author of a write, as the entries will name it."""
    resource, requested = kind.storage_kind.resource, kind.resource.api_version
    name, versions = options.field_manager or IN_PROCESS, versions_with_same_fields(kind)
    version = requested if requested in versions else resource.api_version
    return Author(name, version, resource.schema, subresource, change.now, versions)


def effective_configuration(kind: Kind, config: Obj, subresource: str) -> Obj:
    """Return the part of a configuration that is applied: no spec for a subresource, no status where it is a subresource."""
    if subresource:
        ignored = "spec"
    elif "status" in (kind.subresources or {}):
        ignored = "status"
    else:
        return config
    return {key: value for key, value in config.items() if key != ignored}


def merge(kind: Kind, live: Obj, config: Obj, writer: Author, force: bool) -> tuple[Obj, list[Obj]]:
    """Merge a configuration into `live`, empty for a new object. Return the object, which the caller owns, and its entries.

    Raises ConflictError for fields that other managers own, unless `force`; BadRequestError for list items without keys.
    """
    new, entries = apply_configuration(live, config, writer, force=force)
    return drop_empty_zeros(new, kind.storage_kind.resource.schema), entries


def entries_of_new(kind: Kind, obj: Obj, change: Change, options: WriteOptions) -> list[Obj]:
    """Return the entries of an object that is created otherwise than by an apply, before its strategy has prepared it."""
    if not options.field_manager or not kind.storage_kind.tracks_creator(obj):
        return []
    return entries_of_creator(effective_configuration(kind, obj, ""), author(kind, change, options, ""))


def set_managed_fields(new: Obj, old: Obj, sent: list[Obj] | None, entries: list[Obj] | None, writer: Author) -> None:
    """Set, in place, the managedFields of `new`, which replaces `old`. `entries`: those of an apply; None for other writes."""
    if entries is None:
        entries = entries_after_update(old, new, sent, writer)
    if not entries:
        return
    kept = old["metadata"].get("managedFields")
    # A write that would change nothing but times changes nothing, so the entries keep their times.
    if (
        kept
        and _without_bookkeeping(new) == _without_bookkeeping(old)
        and without_times(entries) == without_times(kept)
    ):
        entries = kept
    new["metadata"]["managedFields"] = entries


def _without_bookkeeping(obj: Obj) -> Obj:
    """Return an object without the metadata that every write changes."""
    hidden = ("managedFields", "resourceVersion")
    return obj | {"metadata": {key: value for key, value in obj["metadata"].items() if key not in hidden}}


# Writes that the server makes itself, as they are passed to the audit log.
#
# Rules kept here:
# * A write is passed on when the store has committed it, or when its outcome is not known. An attempt that changed nothing is
#   not.
# * A write that a client requests over HTTP is not passed on: the record of its request covers it. `Change.writer` tells them
#   apart.

Outcome = TypeVar("Outcome", bound=Entry | int)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWrite:
    """One write of the server itself."""

    verb: str
    """`create`, `update` or `delete`."""
    kind: Kind
    namespace: str
    name: str
    subresource: str = ""
    change: Change
    raw: bytes = b""
    """The object as it was stored; empty for a delete and for a value that could not be read."""
    revision: int = 0
    """Revision of the write; 0 when the outcome is not known."""
    failure: StorageError | None = None
    """Why the outcome is not known."""


Observe = Callable[[ServerWrite], None]


def ignore(write: ServerWrite) -> None:
    """Record nothing: commands on the data directory, and tests."""


async def observed(commit: Awaitable[Outcome], make: Callable[..., ServerWrite], observe: Observe) -> Outcome:
    """Await the commit of a server's write, pass the write on, and return what the store returned. Raises what the store raises.

    `make` returns the write for `revision` or `failure`.
    """
    try:
        result = await commit
    except (KeyExistsError, RevisionMismatchError):
        raise
    except StorageError as failure:
        observe(make(failure=failure))
        raise
    except asyncio.CancelledError:
        observe(make(failure=StorageError("the server stopped before the store answered")))
        raise
    observe(make(revision=result if isinstance(result, int) else result.revision))
    return result
