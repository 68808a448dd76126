"""The checks of a record across keys: revisions, watches and lists."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.support.history.operations import Operation, Outcome, Verb
from tests.support.history.revisions import Listing, judge_listings, judge_revisions
from tests.support.history.watches import Change, Watch, judge_watches


def write(begin: int, end: int, key: str, value: str, revision: int) -> Operation:
    return Operation(client="c", key=key, verb=Verb.CREATE, begin=begin, end=end, value=value, revision=revision)


def read(begin: int, end: int, key: str, value: str, revision: int) -> Operation:
    return Operation(client="r", key=key, verb=Verb.READ, begin=begin, end=end, value=value, revision=revision)


def delete(begin: int, end: int, key: str, value: str, outcome: Outcome = Outcome.DONE) -> Operation:
    return Operation(client="c", key=key, verb=Verb.DELETE, begin=begin, end=end, expected=value, outcome=outcome)


def listing(begin: int, end: int, revision: int, **values: str) -> Listing:
    return Listing(client="l", begin=begin, end=end, revision=revision, values=tuple(values.items()))


@dataclass(frozen=True)
class Case:
    operations: tuple[Operation, ...]
    listings: tuple[Listing, ...] = ()
    finding: str = ""


A, B = write(1, 2, "a", "a1", 5), write(3, 4, "b", "b1", 6)
LOST = Operation(client="c", key="b", verb=Verb.CREATE, begin=3, end=None, outcome=Outcome.UNKNOWN, value="b1")

REVISIONS = {
    "revisions grow": Case((A, B)),
    "writes beside one another have any order": Case((write(1, 4, "a", "a1", 6), write(2, 3, "b", "b1", 5))),
    "a write with a lower revision than an earlier one": Case((write(1, 2, "a", "a1", 7), B), finding="after revision 7"),
    "two writes with one revision": Case((write(1, 3, "a", "a1", 5), write(2, 4, "b", "b1", 5)), finding="is also that of a1"),
    "a value read at another revision": Case((A, read(3, 4, "a", "a1", 6)), finding="revision 5 is 6"),
    "a list of the newest": Case((A, B), (listing(5, 6, 6),)),
    "a list beside a write": Case((A, B), (listing(3, 6, 5),)),
    "a list older than a write before it": Case((A, B), (listing(5, 6, 5),), "lists at 5 after revision 6"),
    "lists go backwards": Case((A,), (listing(5, 6, 9), listing(7, 8, 8)), "lists at 8 after revision 9"),
    "a write at a revision that was listed": Case((write(7, 8, "a", "a1", 9),), (listing(5, 6, 9),), "after revision 9"),
    "a write without a reply has no revision": Case((A, LOST)),
}  # fmt: skip


@pytest.mark.parametrize("case", REVISIONS.values(), ids=REVISIONS)
def test_revisions(case: Case) -> None:
    assert_found(judge_revisions(case.operations, case.listings), case.finding)


def assert_found(findings: list[str], wanted: str) -> None:
    assert [wanted in finding for finding in findings] == [True] * bool(wanted), findings


def watch(*changes: Change, after: int = 1, through: int = 0) -> Watch:
    made = Watch("w", after)
    for change in changes:
        made.add(change)
    made.through = max(made.through, through)
    return made


A1, B1, A_GONE = Change(5, "a", "a1"), Change(6, "b", "b1"), Change(7, "a", "a1", deleted=True)
GONE = delete(5, 6, "a", "a1")

WATCHES: dict[str, tuple[list[Watch], list[Operation], str]] = {
    "everything in order": ([watch(A1, B1, A_GONE)], [A, B, GONE], ""),
    "one revision with changes of two keys": ([watch(A1, Change(5, "b", "b1"))], [], ""),
    "a write after the end of the watch": ([watch(A1)], [A, B], ""),
    "a write before the begin of the watch": ([watch(B1, after=5)], [A, B], ""),
    "a write without a reply is delivered": ([watch(A1, B1)], [A], ""),
    "a write is missing": ([watch(B1)], [A, B], "misses revision 5"),
    "the last write before a bookmark is missing": ([watch(A1, through=6)], [A, B], "misses revision 6"),
    "a deletion is missing": ([watch(A1, B1, Change(8, "a", "a2"))], [A, B, GONE], "misses [5, 6] c delete a over a1"),
    "a refused deletion is not missing": ([watch(A1, Change(8, "a", "a2"))], [A, delete(5, 6, "a", "a1", Outcome.CONFLICT)], ""),
    "a write is delivered twice": ([watch(A1, A1)], [A], "delivers twice 5: a a1"),
    "a write is delivered late": ([watch(B1, A1)], [A, B], "goes back from 6 to 5: a a1"),
    "a write from before the watch": ([watch(A1, after=5)], [], "goes back from 5"),
    "a write at another revision": ([watch(Change(8, "a", "a1"), after=6)], [A], "delivers at revision 8 the write of 5"),
    "two watches of one order": ([watch(A1, B1), watch(B1, after=5)], [A, B], ""),
    "two watches that differ": ([watch(A1, B1), watch(A1, through=6)], [A], "that of w does not: 6: b b1"),
}  # fmt: skip


@pytest.mark.parametrize(("watches", "operations", "finding"), WATCHES.values(), ids=WATCHES)
def test_watches(watches: list[Watch], operations: list[Operation], finding: str) -> None:
    assert_found(judge_watches(watches, operations), finding)


LISTS: dict[str, tuple[Listing, str]] = {
    "before the first write": (listing(1, 2, 4), ""),
    "after the first write": (listing(1, 2, 5, a="a1"), ""),
    "after a write elsewhere": (listing(1, 2, 6, a="a1", b="b1"), ""),
    "after a deletion": (listing(1, 2, 7, b="b1"), ""),
    "beyond the watches nothing is known": (listing(1, 2, 9, b="b2"), ""),
    "a write too few": (listing(1, 2, 6, a="a1"), "not what w watched up to that revision at b"),
    "a write too many": (listing(1, 2, 5, a="a1", b="b1"), "not what w watched up to that revision at b"),
    "a deleted object": (listing(1, 2, 7, a="a1", b="b1"), "not what w watched up to that revision at a"),
}


@pytest.mark.parametrize(("listed", "finding"), LISTS.values(), ids=LISTS)
def test_lists(listed: Listing, finding: str) -> None:
    assert_found(judge_listings([listed], [watch(A1, B1, A_GONE, through=8)]), finding)
    later = watch(A_GONE, after=6, through=8)
    later.initial = (("a", "a1"), ("b", "b1"))
    assert_found(judge_listings([listed], [later]), finding if listed.revision > 5 else "")
