"""Encode lists in JSON, YAML, protobuf, as Table or as PartialObjectMetadataList, in slices (docs/adr/0024).

Rules kept here:
* The bytes are those of a list that is made at once. Slices only spread the work over several turns of the event loop.
* Stored bytes are sent as they are (law 5).
* A JSON list is joined from stored bytes while the client reads it, so that a slow reader holds one slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from mooring.apimachinery.codec.json import encode_json, indent_json
from mooring.apimachinery.codec.protobuf import encode_message, envelope_parts
from mooring.apimachinery.codec.yaml import encode_yaml
from mooring.apimachinery.metav1 import PARTIAL_OBJECT_METADATA_LIST, list_of
from mooring.apimachinery.resource import Resource
from mooring.apimachinery.schema import Message, Obj
from mooring.apimachinery.table import Include, partial_metadata, partial_metadata_list, rows, table
from mooring.registry.cache.events import Stored
from mooring.registry.cache.kindcache import SLICE_BYTES, SLICE_ITEMS, joined, joined_size, slices
from mooring.server.transport.http import Body, Pieces

_TYPE = ("kind", "apiVersion")
"""Fields that items of a list do not have; see `mooring.registry.cache.kindcache.joined`."""
YAML_SHARE = 10
"""Encoding YAML takes about ten times as long as JSON: its slices are smaller, and count for more, by this factor."""

Run = Callable[[Sequence[Stored]], bytes]
Convert = Callable[[Sequence[Stored]], list[Obj]]
Compute = Callable[[int, Callable[[], bytes]], Awaitable[bytes]]
"""Function that runs a computation about so many bytes of JSON: `mooring.registry.offload.Offload.run` for one user."""
Around = Callable[[int], tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class ListForm:
    """One representation of one list.

    `run` encodes some items. `around` returns the bytes before and after all items, whose encoded length is its argument.
    """

    around: Around
    run: Run
    between: bytes = b","
    share: int = 1
    """Factor by which slices are smaller than usual."""

    async def body(self, items: Sequence[Stored], compute: Compute) -> bytes | Body:
        """Encode the list of `items`, giving way to other tasks between slices. `compute` runs large slices beside the event
        loop."""
        parts: list[bytes] = []
        for run in slices(items, self.share):
            if parts:
                await asyncio.sleep(0)
                parts.append(self.between)
            parts.append(await compute(self.share * sum(len(item.raw) for item in run), partial(self.run, run)))
        before, after = self.around(sum(map(len, parts)))
        return b"".join((before, *parts, after)) if len(parts) <= 1 else Pieces((before, *parts, after))


@dataclass(frozen=True, slots=True)
class StoredList:
    """A JSON list whose pieces are joined from stored bytes as they are sent."""

    resource: Resource
    before: bytes
    items: Sequence[Stored]
    after: bytes = b"]}"

    @property
    def size(self) -> int:
        return len(self.before) + joined_size(self.resource, self.items) + len(self.after)

    def __iter__(self) -> Iterator[bytes]:
        pending = self.before
        for run in slices(self.items):
            yield pending + joined(self.resource, run)
            pending = b","
        yield self.after if self.items else pending + self.after


def json_head(resource: Resource, metadata: Obj) -> bytes:
    """Return the bytes of a JSON list before its items."""
    return b'{"kind":"%bList","apiVersion":"%b","metadata":%b,"items":[' % (
        resource.kind.encode(),
        resource.api_version.encode(),
        encode_json(metadata),
    )


def json_body(resource: Resource, metadata: Obj, items: Sequence[Stored]) -> bytes | Body:
    """Return a JSON list: a long one in pieces."""
    body = StoredList(resource, json_head(resource, metadata), items)
    return body if len(items) > SLICE_ITEMS or body.size > SLICE_BYTES else b"".join(body)


def as_json(resource: Resource, metadata: Obj) -> ListForm:
    """Return the form of a JSON list, for `indented`."""
    head = json_head(resource, metadata)
    return ListForm(lambda size: (head, b"]}"), lambda run: joined(resource, run))


def as_table(
    resource: Resource, metadata: Obj, now: datetime, include: Include, api_version: str, media: str
) -> ListForm:
    """Return the form of a Table, in JSON or YAML."""
    empty = table(resource, [], now, include, metadata, api_version=api_version)

    def convert(run: Sequence[Stored]) -> list[Obj]:
        return rows(resource, [item.obj for item in run], now, include, api_version)

    return _yaml(empty, "rows", convert) if media == "yaml" else _json(empty, convert)


def as_partial_metadata(metadata: Obj, api_version: str, media: str) -> ListForm:
    """Return the form of a PartialObjectMetadataList."""
    empty = partial_metadata_list((), metadata, api_version)

    def convert(run: Sequence[Stored]) -> list[Obj]:
        return [partial_metadata(item.obj, api_version) for item in run]

    if media == "protobuf":
        return _protobuf(empty, PARTIAL_OBJECT_METADATA_LIST, convert)
    if media == "yaml":
        return _yaml(empty, "items", convert)
    return _json(empty, convert)


def as_objects(resource: Resource, metadata: Obj, media: str) -> ListForm:
    """Return the form of a list of whole objects in protobuf or YAML."""
    empty: Obj = {
        "kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": metadata, "items": [],
    }  # fmt: skip

    def convert(run: Sequence[Stored]) -> list[Obj]:
        return [{name: value for name, value in item.obj.items() if name not in _TYPE} for item in run]

    if media == "protobuf":
        return _protobuf(empty, list_of(resource.schema), convert)
    return _yaml(empty, "items", convert)


def indented(form: ListForm) -> ListForm:
    """Return a JSON form with indentation."""
    before, after = form.around(0)
    empty = indent_json(before + after)
    lead, end = len(b'{\n  "items": [\n'), len(b"\n  ]\n}\n")

    def indent_items(run: Sequence[Stored]) -> bytes:
        return indent_json(b'{"items":[%b]}' % form.run(run))[lead:-end]

    def around(size: int) -> tuple[bytes, bytes]:
        return (empty[: -len(b"]\n}\n")] + b"\n", b"\n  ]\n}\n") if size else (empty, b"")

    return ListForm(around, indent_items, b",\n")


def _json(empty: Obj, convert: Convert) -> ListForm:
    """Return a JSON form: the items go into the empty list at the end of the empty document."""
    raw = encode_json(empty)
    return ListForm(lambda size: (raw[:-2], raw[-2:]), lambda run: b",".join(map(encode_json, convert(run))))


def _yaml(empty: Obj, name: str, convert: Convert) -> ListForm:
    """Return a YAML form: the items follow the line of their field, and are not indented below it."""
    field = name.encode() + b":"
    before, _, after = encode_yaml(empty).partition(b"\n" + field + b" []\n")

    def around(size: int) -> tuple[bytes, bytes]:
        return before + b"\n" + field + (b"\n" if size else b" []\n"), after

    return ListForm(around, lambda run: encode_yaml({name: convert(run)})[len(field) + 1 :], b"", YAML_SHARE)


def _protobuf(empty: Obj, schema: Message, convert: Convert) -> ListForm:
    """Return a protobuf form: the items follow the encoded empty list."""
    head = encode_message(empty, schema)

    def around(size: int) -> tuple[bytes, bytes]:
        before, after = envelope_parts(empty["apiVersion"], empty["kind"], len(head) + size)
        return before + head, after

    return ListForm(around, lambda run: encode_message({"items": convert(run)}, schema), b"")
