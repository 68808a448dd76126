"""The judge of writes under disk faults finds what is wrong, and the plans reach every operation and file."""

from __future__ import annotations

import pytest

from tests.faults.disk.history import DONE, REFUSED, UNKNOWN, Final, Keys
from tests.faults.disk.plans import TARGETS, Subject, plan_of, seeds_of, subject_of
from tests.faults.disk.storeprogram import tag_of, value_of


def written(*outcomes: tuple[str | None, str, int]) -> Keys:
    """Return the record of writes to one key."""
    keys = Keys()
    for value, outcome, revision in outcomes:
        keys.begin("/k", value)
        keys.end("/k", outcome, revision)
    return keys


@pytest.mark.parametrize(
    ("outcomes", "found", "wrong"),
    [
        ([("v", DONE, 2)], ("v", 2), ""),
        ([("v", DONE, 2)], None, "/k was read as absent, and may be v"),
        ([("v", DONE, 2)], ("v", 3), "/k is at revision 3, acknowledged was 2"),
        ([("v", DONE, 2), ("w", DONE, 3)], ("v", 2), "may be w"),
        ([("v", DONE, 2), ("w", REFUSED, 0)], ("w", 3), "was read as w, and may be v"),
        ([("v", DONE, 2), ("w", REFUSED, 0)], ("v", 2), ""),
        ([("v", DONE, 2), ("w", UNKNOWN, 0)], ("v", 2), ""),
        ([("v", DONE, 2), ("w", UNKNOWN, 0)], ("w", 3), ""),
        ([("v", DONE, 2), ("w", UNKNOWN, 0)], None, "may be v or w"),
        ([("v", DONE, 2), (None, UNKNOWN, 0)], None, ""),
        ([("v", DONE, 2), (None, DONE, 3)], ("v", 2), "may be absent"),
        ([("v", REFUSED, 0)], ("v", 2), "may be absent"),
        ([("v", DONE, 2), ("w", DONE, 2)], ("w", 2), "at revision 2 after 2 was acknowledged"),
    ],
)
def test_a_write_is_lost_undone_or_stored_although_it_was_refused(
    outcomes: list[tuple[str | None, str, int]], found: tuple[str, int] | None, wrong: str
) -> None:
    keys = written(*outcomes)
    keys.judge({} if found is None else {"/k": Final(*found)}, 9)
    assert any(wrong in finding for finding in keys.findings) if wrong else not keys.findings, keys.findings


def test_a_revision_is_lost_or_given_twice() -> None:
    keys, other = written(("v", DONE, 7)), Keys()
    keys.judge({"/k": Final("v", 7)}, 6)
    assert keys.findings == ["the newest revision is 6, 7 was acknowledged"]
    other.begin("/l", "v")
    other.end("/l", DONE, 7)
    keys.merge(other)
    assert keys.findings[1:] == ["revision 7 was given to /k and to /l"]


def test_a_write_without_an_answer_may_be_there() -> None:
    keys = Keys()
    keys.begin("/k", "v")
    keys.lose()
    assert keys.states("/k") == {None, "v"}


def test_a_torn_value_is_no_value_that_was_written() -> None:
    whole = value_of("/a/1-2:300")
    assert tag_of(whole) == "/a/1-2:300"
    for torn in (whole[:-1], whole[:150] + bytes(len(whole) - 150), b"", b"\xff"):
        assert tag_of(torn).startswith("torn value")


def test_three_hundred_seeds_have_every_subject_operation_and_file() -> None:
    plans = [plan_of(seed) for seed in range(300)]
    assert plans == [plan_of(seed) for seed in range(300)]
    assert {subject: sum(plan.subject is subject for plan in plans) for subject in Subject} == {
        Subject.STORE: 190,
        Subject.ENCRYPTED_STORE: 30,
        Subject.TWO_PROCESSES: 30,
        Subject.COMMAND: 20,
        Subject.SERVER: 10,
        **dict.fromkeys((Subject.WORKERS, Subject.SNAPSHOTS, Subject.KEY_ROTATION, Subject.ROLLOVER), 5),
    }
    drawn = {(fault.operation, fault.pattern) for plan in plans if plan.subject.is_store for fault in plan.faults}
    assert drawn == set(TARGETS[Subject.STORE])


def test_seeds_are_named_singly_or_as_a_range() -> None:
    assert seeds_of("7") == range(7, 8)
    assert seeds_of("10-12") == range(10, 13)
    assert subject_of(29 + 30) is not subject_of(29)
