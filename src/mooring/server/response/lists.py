"""Lists in each representation, made in slices so that a long one does not hold the event loop (docs/adr/0024).

Rules kept here:
* The bytes are those of the same list made in one go. Only the turns of the loop differ in which they are made.
* Stored bytes are sent as they are (law 5).
* A list in JSON is put together from kept bytes while the client reads it: what waits for a slow reader is one slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from mooring.apimachinery.codec.json import encode_json, indent_json
from mooring.apimachinery.codec.protobuf.encode import encode_message
from mooring.apimachinery.codec.protobuf.envelope import envelope_parts
from mooring.apimachinery.codec.yaml import encode_yaml
from mooring.apimachinery.metav1 import PARTIAL_OBJECT_METADATA_LIST, list_of
from mooring.apimachinery.resource import Resource
from mooring.apimachinery.schema import Message, Obj
from mooring.apimachinery.table import Include, partial_metadata, partial_metadata_list, rows, table
from mooring.registry.cache.slices import SLICE_BYTES, SLICE_ITEMS, joined, joined_size, slices
from mooring.registry.cache.stored import Stored
from mooring.server.transport.http import Body, Pieces

_TYPE = ("kind", "apiVersion")
"""Not carried by items of a list; see `mooring.registry.cache.slices.joined`."""
YAML_SHARE = 10
"""Writing YAML takes about ten times as long as writing JSON: its slices are that much smaller, and count for that much more."""

Run = Callable[[Sequence[Stored]], bytes]
Shown = Callable[[Sequence[Stored]], list[Obj]]
Compute = Callable[[int, Callable[[], bytes]], Awaitable[bytes]]
"""Runs a computation about so many bytes of JSON: `mooring.registry.longwork.LongWork.run` for one user."""
Around = Callable[[int], tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Form:
    """One representation of one list. `run` gives the bytes of some members, `around` the bytes before and after all of them, which
    together have the given length."""

    around: Around
    run: Run
    between: bytes = b","
    share: int = 1
    """Slices are this much smaller than usual."""

    async def body(self, items: Sequence[Stored], compute: Compute) -> bytes | Body:
        """The list of `items`, giving way between slices; `compute` runs the large ones beside the event loop."""
        parts: list[bytes] = []
        for run in slices(items, self.share):
            if parts:
                await asyncio.sleep(0)
                parts.append(self.between)
            parts.append(await compute(self.share * sum(len(item.raw) for item in run), partial(self.run, run)))
        before, after = self.around(sum(map(len, parts)))
        return b"".join((before, *parts, after)) if len(parts) <= 1 else Pieces((before, *parts, after))


@dataclass(frozen=True, slots=True)
class KeptList:
    """A list in JSON whose pieces are made from kept bytes as they are sent."""

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
    """The bytes of a list in JSON before its members."""
    return b'{"kind":"%bList","apiVersion":"%b","metadata":%b,"items":[' % (
        resource.kind.encode(),
        resource.api_version.encode(),
        encode_json(metadata),
    )


def kept(resource: Resource, metadata: Obj, items: Sequence[Stored]) -> bytes | Body:
    """A list in JSON."""
    body = KeptList(resource, json_head(resource, metadata), items)
    return body if len(items) > SLICE_ITEMS or body.size > SLICE_BYTES else b"".join(body)


def as_json(resource: Resource, metadata: Obj) -> Form:
    """A list in JSON, for `indented`."""
    head = json_head(resource, metadata)
    return Form(lambda size: (head, b"]}"), lambda run: joined(resource, run))


def as_table(resource: Resource, metadata: Obj, now: datetime, include: Include, api_version: str, media: str) -> Form:
    """A Table. There is none in protobuf."""
    empty = table(resource, [], now, include, metadata, api_version=api_version)

    def shown(run: Sequence[Stored]) -> list[Obj]:
        return rows(resource, [item.obj for item in run], now, include, api_version)

    return _yaml(empty, "rows", shown) if media == "yaml" else _json(empty, shown)


def as_partial_metadata(metadata: Obj, api_version: str, media: str) -> Form:
    """A PartialObjectMetadataList."""
    empty = partial_metadata_list((), metadata, api_version)

    def shown(run: Sequence[Stored]) -> list[Obj]:
        return [partial_metadata(item.obj, api_version) for item in run]

    if media == "protobuf":
        return _protobuf(empty, PARTIAL_OBJECT_METADATA_LIST, shown)
    if media == "yaml":
        return _yaml(empty, "items", shown)
    return _json(empty, shown)


def as_objects(resource: Resource, metadata: Obj, media: str) -> Form:
    """The objects themselves in protobuf or YAML."""
    empty: Obj = {
        "kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": metadata, "items": [],
    }  # fmt: skip

    def shown(run: Sequence[Stored]) -> list[Obj]:
        return [{name: value for name, value in item.obj.items() if name not in _TYPE} for item in run]

    if media == "protobuf":
        return _protobuf(empty, list_of(resource.schema), shown)
    return _yaml(empty, "items", shown)


def indented(form: Form) -> Form:
    """A JSON form with indentation, for people."""
    before, after = form.around(0)
    empty = indent_json(before + after)
    lead, end = len(b'{\n  "items": [\n'), len(b"\n  ]\n}\n")

    def written(run: Sequence[Stored]) -> bytes:
        return indent_json(b'{"items":[%b]}' % form.run(run))[lead:-end]

    def around(size: int) -> tuple[bytes, bytes]:
        return (empty[: -len(b"]\n}\n")] + b"\n", b"\n  ]\n}\n") if size else (empty, b"")

    return Form(around, written, b",\n")


def _json(empty: Obj, shown: Shown) -> Form:
    """The members go into the empty list with which the empty document ends."""
    raw = encode_json(empty)
    return Form(lambda size: (raw[:-2], raw[-2:]), lambda run: b",".join(map(encode_json, shown(run))))


def _yaml(empty: Obj, name: str, shown: Shown) -> Form:
    """The members follow the line of the field that holds them; a list is not indented below its field."""
    field = name.encode() + b":"
    before, _, after = encode_yaml(empty).partition(b"\n" + field + b" []\n")

    def around(size: int) -> tuple[bytes, bytes]:
        return before + b"\n" + field + (b"\n" if size else b" []\n"), after

    return Form(around, lambda run: encode_yaml({name: shown(run)})[len(field) + 1 :], b"", YAML_SHARE)


def _protobuf(empty: Obj, schema: Message, shown: Shown) -> Form:
    head = encode_message(empty, schema)

    def around(size: int) -> tuple[bytes, bytes]:
        before, after = envelope_parts(empty["apiVersion"], empty["kind"], len(head) + size)
        return before + head, after

    return Form(around, lambda run: encode_message({"items": shown(run)}, schema), b"")
