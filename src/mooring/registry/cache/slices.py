"""Handle long lists in slices, and join stored bytes into the items of a JSON list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mooring.apimachinery.resource import Resource
from mooring.registry.cache.stored import Stored, head

_METADATA = len(b'"metadata":{')

SLICE_ITEMS = 500
SLICE_BYTES = 1 << 20
"""Objects, and bytes, of a long list that are handled in one turn of the event loop: 5 to 25 ms when they are decoded and
encoded."""


def slices(items: Sequence[Stored], share: int = 1) -> Iterator[Sequence[Stored]]:
    """Yield `items` in runs of at most `SLICE_ITEMS`, which end with the object that reaches `SLICE_BYTES`. `share` divides
    both."""
    start = size = 0
    most_items, most_bytes = SLICE_ITEMS // share, SLICE_BYTES // share
    for place, item in enumerate(items, 1):
        size += len(item.raw)
        if size >= most_bytes or place - start >= most_items:
            yield items[start:place]
            start, size = place, 0
    if start < len(items):
        yield items[start:]


def joined(resource: Resource, items: Sequence[Stored]) -> bytes:
    """Return the items of a JSON list as stored bytes without kind and apiVersion.

    The list carries these; Go clients compare items with objects of their own, which have neither.
    """
    cut = len(head(resource)) - _METADATA
    return b"{" + b",{".join([item.raw[cut:] for item in items]) if items else b""


def joined_size(resource: Resource, items: Sequence[Stored]) -> int:
    """Return the size in bytes of the result of `joined`."""
    cut = len(head(resource)) - _METADATA - 2  # two bytes for the comma and brace before each item but the first
    return sum([len(item.raw) for item in items]) - cut * len(items) - 1 if items else 0
