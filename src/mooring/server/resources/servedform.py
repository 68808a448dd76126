"""Convert between the form of a kind that clients see and the form in which the registry has its objects.

Rules kept here (docs/adr/0016):
* Only a kind with an alias has two forms. The objects and options of every other kind are returned as they are.
* A selector is converted, and not each object that it is compared with.
* A converted object has the bytes that `encoded` makes of it, so that every reply is made as for a stored one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from mooring.api.kind import Kind
from mooring.apimachinery.codec.json import deep_copy
from mooring.apimachinery.codec.zerofields import complete
from mooring.apimachinery.options import ListOptions
from mooring.apimachinery.selectors import check_field_labels
from mooring.registry.cache.slices import slices
from mooring.registry.cache.stored import Stored, encoded


def stored_selectors(kind: Kind, options: ListOptions) -> ListOptions:
    """Return the options with the field labels of the stored kind. Raises BadRequestError for a label that `kind` does not have."""
    if options.field_selector.empty:
        return options
    check_field_labels(options.field_selector, kind.field_labels)
    if kind.alias is None:
        return options
    return replace(options, field_selector=options.field_selector.renamed(kind.alias.field_labels))


def served(kind: Kind, stored: Stored) -> Stored:
    """Return an object in the form of `kind`."""
    if kind.alias is None:
        return stored
    obj = kind.from_storage(deep_copy(stored.obj))
    complete(obj, kind.resource.schema)
    value = encoded(kind.resource, obj)
    return Stored.of(kind, stored.namespace, stored.name, stored.revision, value, is_whole=True, key=stored.key)


async def served_list(kind: Kind, items: Sequence[Stored]) -> Sequence[Stored]:
    """Return objects in the form of `kind`, giving way to other tasks between slices."""
    if kind.alias is None:
        return items
    converted: list[Stored] = []
    for run in slices(items):
        converted += [served(kind, item) for item in run]
        await asyncio.sleep(0)
    return converted
