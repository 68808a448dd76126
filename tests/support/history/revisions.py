"""Promises of revisions: one for each write, growing in real-time order across all keys, never going backwards for readers."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.support.history.operations import ABSENT, Operation, Outcome
from tests.support.history.watches import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A list of the newest state: all keys with their values, at one revision."""

    client: str
    begin: int
    end: int
    revision: int
    values: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"[{self.begin}, {self.end}] {self.client} lists at {self.revision}"


def judge_revisions(operations: Sequence[Operation], listings: Sequence[Listing]) -> list[str]:
    """Return what is wrong with the revisions that clients were told."""
    return [
        *_ambiguous(operations),
        *_shrinking([one for one in operations if one.is_write and _is_known(one)], listings),
    ]


def judge_listings(listings: Iterable[Listing], watches: Iterable[Watch]) -> list[str]:
    """Return the lists that differ from the state which a watch delivered up to the revision of the list."""
    ordered = sorted(listings, key=lambda one: one.revision)
    return [finding for watch in watches for finding in _unlike(watch, ordered)]


def _unlike(watch: Watch, listings: Iterable[Listing]) -> Iterable[str]:
    """Yield the lists, in the order of revisions, that are not the state that one watch delivered."""
    state = dict(watch.initial)
    changes = deque(watch.changes)
    for listing in listings:
        if not watch.after <= listing.revision <= watch.through:
            continue
        while changes and changes[0].revision <= listing.revision:
            change = changes.popleft()
            state[change.key] = ABSENT if change.deleted else change.value
        wanted = {key: value for key, value in state.items() if value != ABSENT}
        if different := sorted({key for key, _ in wanted.items() ^ dict(listing.values).items()}):
            yield f"{listing}: not what {watch.client} watched up to that revision at {', '.join(different)}"


def _is_known(operation: Operation) -> bool:
    return operation.revision > 0 and operation.outcome is Outcome.DONE


def _ambiguous(operations: Iterable[Operation]) -> Iterable[str]:
    """Yield values with two revisions, and revisions with two values."""
    of_value: dict[tuple[str, str], int] = {}
    of_revision: dict[int, tuple[str, str]] = {}
    for operation in operations:
        if not _is_known(operation) or not operation.value:
            continue
        named = (operation.key, operation.value)
        if (first := of_value.setdefault(named, operation.revision)) != operation.revision:
            yield f"revision {first} is {operation.revision} in {operation}"
        elif of_revision.setdefault(operation.revision, named) != named:
            yield f"revision {operation.revision} is also that of {of_revision[operation.revision][1]}: {operation}"


def _shrinking(writes: Sequence[Operation], listings: Sequence[Listing]) -> Iterable[str]:
    """Yield operations whose revision is lower than one that was told before they began."""
    told: list[tuple[int, int, str]] = []
    begun: list[tuple[int, int, bool, Operation | Listing]] = []
    for write in writes:
        assert write.end is not None
        told.append((write.end, write.revision, str(write)))
        begun.append((write.begin, write.revision, True, write))
    for listing in listings:
        told.append((listing.end, listing.revision, str(listing)))
        begun.append((listing.begin, listing.revision, False, listing))
    heapq.heapify(told)
    newest, source = 0, ""
    for begin, revision, is_write, operation in sorted(begun, key=lambda one: one[0]):
        while told and told[0][0] < begin:
            _, known, text = heapq.heappop(told)
            if known > newest:
                newest, source = known, text
        if revision < newest or (is_write and revision == newest):
            yield f"revision {revision} of {operation} after revision {newest} of {source}"
