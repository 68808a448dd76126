"""Promises of watches: every change once, in revision order, without a gap from the first to the last revision of the watch.

A watch of the record is one client's: when its connection ends it goes on at its last revision, also at another server. When its
revision is too old, the client lists and another watch of the record begins. Deleted objects carry the revision of their deletion
and the value that they had.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from tests.support.history.operations import Operation, Outcome, Verb


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """One event of a watch. `value` is the new one; of a deletion, the last."""

    revision: int
    key: str
    value: str
    deleted: bool = False

    def __str__(self) -> str:
        return f"{self.revision}: {self.key} {'deleted at ' if self.deleted else ''}{self.value}"


@dataclass
class Watch:
    """Events of one client after revision `after`, up to and with `through`. `initial`: the keys with their values at `after`."""

    client: str
    after: int
    initial: tuple[tuple[str, str], ...] = ()
    changes: list[Change] = field(default_factory=list)
    through: int = 0

    def add(self, change: Change) -> None:
        self.changes.append(change)
        self.through = max(self.through, change.revision)

    def covers(self, revision: int) -> bool:
        return self.after < revision <= self.through


def judge_watches(watches: Sequence[Watch], operations: Iterable[Operation]) -> list[str]:
    """Return what is wrong with the watches, in view of the acknowledged writes."""
    writes = [operation for operation in operations if operation.is_write and operation.outcome is Outcome.DONE]
    findings: list[str] = []
    for watch in watches:
        findings += _misordered(watch)
        findings += _missed(watch, writes)
    for one, other in combinations(watches, 2):
        findings += _differing(one, other)
    return findings


def _misordered(watch: Watch) -> Iterable[str]:
    last = watch.after
    seen: set[tuple[int, str]] = set()
    for change in watch.changes:
        if (change.revision, change.key) in seen:
            yield f"the watch of {watch.client} delivers twice {change}"
        elif change.revision < last or change.revision <= watch.after:
            yield f"the watch of {watch.client} goes back from {last} to {change}"
        seen.add((change.revision, change.key))
        last = max(last, change.revision)


def _missed(watch: Watch, writes: Iterable[Operation]) -> Iterable[str]:
    delivered = {(change.key, change.value, change.deleted): change.revision for change in watch.changes}
    last_of_key = {change.key: change.revision for change in watch.changes}
    for write in writes:
        is_deletion = write.verb is Verb.DELETE
        value = write.expected if is_deletion else write.value
        revision = delivered.get((write.key, value, is_deletion))
        if revision is not None and write.revision and revision != write.revision:
            yield f"the watch of {watch.client} delivers at revision {revision} the write of {write.revision}: {write}"
        if revision is not None:
            continue
        if write.revision and watch.covers(write.revision):
            yield f"the watch of {watch.client} misses revision {write.revision}: {write}"
        elif (
            is_deletion and value and delivered.get((write.key, value, False), 1 << 63) < last_of_key.get(write.key, 0)
        ):
            # a deletion without revision is known to be covered when a later change of its key was delivered
            yield f"the watch of {watch.client} misses {write}"


def _differing(one: Watch, other: Watch) -> Iterable[str]:
    both = (max(one.after, other.after), min(one.through, other.through))
    first, second = ({c for c in watch.changes if both[0] < c.revision <= both[1]} for watch in (one, other))
    for change in sorted(first ^ second):
        having, lacking = (one, other) if change in first else (other, one)
        yield f"the watch of {having.client} delivers, that of {lacking.client} does not: {change}"
