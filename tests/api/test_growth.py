"""The work of every kind's hooks is linear in the object (law 13 of docs/architecture.md), for every list and map."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby

import pytest

from mooring.api.kind import Change, Kind
from mooring.api.kinds import KINDS
from mooring.api.objectmeta import prepare_meta_for_update, validate_meta, validate_meta_update
from mooring.apimachinery.codec.zerofields import complete
from mooring.apimachinery.schema import Obj
from mooring.errors import ApiError
from mooring.identity import UserInfo
from tests.support.longlists import Place, named, places, with_long
from tests.support.manualclock import EPOCH
from tests.support.work import grows_linearly

SIZE = 60
CHANGE = Change(UserInfo("jane", groups=("dev",)), EPOCH)
METADATA_ONCE = "configmaps"
"""The kind by which metadata is tested: its rules are the same for all kinds."""


def cases() -> Iterator[tuple[Kind, Place]]:
    for kind in KINDS:
        for place in places(kind.resource.schema):
            if place[0] != "metadata" or kind.resource.plural == METADATA_ONCE:
                yield kind, place


def rules(kind: Kind, new: Obj, old: Obj) -> list[Callable[[], object]]:
    """Return the hooks that a write calls."""
    asked: list[Callable[[], object]] = [
        lambda: complete(new, kind.resource.schema),
        lambda: kind.default(new),
        lambda: kind.validate(new),
        lambda: validate_meta(new, kind),
        lambda: validate_meta_update(new, old, kind),
        lambda: kind.validate_create(new),
        lambda: kind.prepare_for_update(new, old, CHANGE),
        lambda: prepare_meta_for_update(new, old, kind),
        lambda: kind.validate_update(new, old),
        lambda: tuple(kind.claims(new)),
        lambda: kind.warnings(new, old),
        lambda: kind.selectable_fields(new),
        lambda: kind.prepare_for_create(new, CHANGE),
    ]
    for policy in (kind.subresources or {}).values():
        asked += [
            partial(policy.prepare_for_update, new, old, CHANGE),
            partial(policy.validate_update, new, old),
        ]
    return asked + [partial(column.cell, new, CHANGE.now) for column in kind.resource.columns]


def work_of_hooks(kind: Kind, place: Place, change: str) -> Callable[[int], Callable[[], None]]:
    """Return what makes the hooks' work on a list or map of a given size."""

    def make(size: int) -> Callable[[], None]:
        def long(numbers: range) -> Obj:
            obj = with_long(kind.resource.schema, place, numbers, is_same=change == "equal")
            return named(obj, kind.resource.kind, kind.resource.api_version)

        new, old = long(range(size)), long(range(size))
        if change == "added":
            new = long(range(size + size // 2)[::-1])
        elif change == "removed":
            new = long(range(size // 2)[::-1])

        def compute() -> None:
            for rule in rules(kind, new, old):
                with contextlib.suppress(ApiError, KeyError, ValueError, TypeError, AttributeError):
                    rule()

        return compute

    return make


CASES = {plural: list(found) for plural, found in groupby(cases(), key=lambda case: case[0].resource.plural)}


@pytest.mark.parametrize("change", ["added", "removed", "equal"])
@pytest.mark.parametrize("plural", CASES)
def test_the_work_of_all_hooks_is_linear(plural: str, change: str) -> None:
    for kind, place in CASES[plural]:
        try:
            grows_linearly(work_of_hooks(kind, place, change), SIZE)
        except AssertionError as error:
            raise AssertionError(f"{plural} {'.'.join(map(str, place))}: {error}") from None
