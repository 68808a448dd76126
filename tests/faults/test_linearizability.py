"""The checker of linearizability: histories known to be good and bad, and agreement with trying every order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.history import linearizability
from tests.support.history.linearizability import TooManyConfigurationsError, judge, judge_record
from tests.support.history.operations import ABSENT, Operation, Outcome, Record, Verb

DONE, EXISTS, CONFLICT, MISSING, UNKNOWN = Outcome


def op(begin: int, end: int | None, verb: str, value: str = "", over: str = "", told: Outcome = DONE) -> Operation:
    """Return one operation on the key; without `end` nothing was told about it."""
    outcome = UNKNOWN if end is None else told
    return Operation(
        client="c", key="k", verb=Verb(verb), begin=begin, end=end, outcome=outcome, value=value, expected=over
    )


CREATED = op(1, 2, "create", "a")

GOOD: dict[str, list[Operation]] = {
    "nothing": [],
    "a read of a key that nobody wrote": [op(1, 2, "read")],
    "writes one after another": [CREATED, op(3, 4, "update", "b", over="a"), op(5, 6, "read", "b")],
    "a read beside a write sees the old value": [CREATED, op(3, 6, "update", "b", over="a"), op(4, 5, "read", "a")],
    "a read beside a write sees the new value": [CREATED, op(3, 6, "update", "b", over="a"), op(4, 5, "read", "b")],
    "two reads beside a write see it come": [
        CREATED, op(3, 8, "update", "b", over="a"), op(4, 5, "read", "a"), op(6, 7, "read", "b"),
    ],
    "one of two creations wins": [op(1, 4, "create", "a"), op(2, 3, "create", "b", told=EXISTS), op(5, 6, "read", "a")],
    "a loser of a compare-and-swap": [
        CREATED, op(3, 6, "update", "b", over="a"), op(4, 5, "update", "c", over="a", told=CONFLICT), op(7, 8, "read", "b"),
    ],
    "deleted and created again": [
        CREATED, op(3, 4, "delete", over="a"), op(5, 6, "read"), op(7, 8, "create", "b"), op(9, 10, "read", "b"),
    ],
    "an update of a deleted key": [CREATED, op(3, 4, "delete"), op(5, 6, "update", "b", over="a", told=MISSING)],
    "a write without a reply took effect": [CREATED, op(3, None, "update", "b", over="a"), op(5, 6, "read", "b")],
    "a write without a reply never took effect": [CREATED, op(3, None, "update", "b", over="a"), op(5, 6, "read", "a")],
    "a write without a reply takes effect late": [
        CREATED, op(3, None, "update", "b", over="a"), op(5, 6, "read", "a"), op(7, 8, "read", "b"),
    ],
    "a creation without a reply, seen by its second attempt": [
        op(1, None, "create", "a"), op(3, 4, "create", "b", told=EXISTS), op(5, 6, "read", "a"),
    ],
    "an unseen write without a reply explains a conflict": [
        CREATED, op(3, None, "update", "b", over="a"), op(5, 6, "update", "c", over="a", told=CONFLICT),
    ],
    "an unseen write and deletion without replies explain a missing key": [
        CREATED, op(3, None, "update", "b", over="a"), op(4, None, "delete", over="b"), op(5, 6, "read"),
    ],
}  # fmt: skip

BAD: dict[str, list[Operation]] = {
    "a value that nobody wrote": [op(1, 2, "read", "x")],
    "stale read": [CREATED, op(3, 4, "update", "b", over="a"), op(5, 6, "read", "a")],
    "stale read after another client saw the new value": [
        CREATED, op(3, 10, "update", "b", over="a"), op(4, 5, "read", "b"), op(6, 7, "read", "a"),
    ],
    "lost update: both compare-and-swaps are acknowledged": [
        CREATED, op(3, 6, "update", "b", over="a"), op(4, 7, "update", "c", over="a"),
    ],
    "lost write: an acknowledged creation is gone": [CREATED, op(3, 4, "read")],
    "double create": [op(1, 4, "create", "a"), op(2, 5, "create", "b")],
    "revived delete": [CREATED, op(3, 4, "delete", over="a"), op(5, 6, "read", "a")],
    "deleted twice": [CREATED, op(3, 6, "delete", over="a"), op(4, 7, "delete", over="a")],
    "a refused creation of a key that never was": [op(1, 2, "create", "a", told=EXISTS), op(3, 4, "read")],
    "a conflict with nobody": [CREATED, op(3, 4, "update", "b", over="a", told=CONFLICT)],
    "a refused write took effect": [
        CREATED, op(3, 4, "update", "b", over="a", told=CONFLICT), op(5, 6, "read", "b"),
    ],
    "missing, while it is there": [CREATED, op(3, 4, "update", "b", over="a", told=MISSING)],
    "a conflict with a key that is gone": [
        CREATED, op(3, 4, "delete"), op(5, 6, "update", "b", over="a", told=CONFLICT),
    ],
    "a write without a reply comes and goes": [
        CREATED, op(3, None, "update", "b", over="a"), op(5, 6, "read", "b"), op(7, 8, "read", "a"),
    ],
    "a write without a reply takes effect before it begins": [CREATED, op(3, 4, "read", "b"), op(5, None, "update", "b")],
    "a write without a reply takes effect twice": [
        CREATED, op(3, None, "update", "b"), op(4, 5, "read", "b"), op(6, 7, "update", "c", over="b"), op(8, 9, "read", "b"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("history", GOOD.values(), ids=GOOD)
def test_good_histories_are_accepted(history: list[Operation]) -> None:
    assert judge(history) is None
    assert has_an_order(history)


@pytest.mark.parametrize("history", BAD.values(), ids=BAD)
def test_bad_histories_are_rejected(history: list[Operation]) -> None:
    assert not has_an_order(history)
    finding = judge(history)
    assert finding is not None
    assert finding.stuck in history
    assert "k is not linearizable" in str(finding)


def has_an_order(history: Sequence[Operation]) -> bool:
    """Try every order of every choice of operations without a reply."""
    known = [one for one in history if one.end is not None]
    unknown = [one for one in history if one.end is None]
    chosen = [extra for size in range(len(unknown) + 1) for extra in combinations(unknown, size)]
    return any(is_possible(order) for extra in chosen for order in permutations([*known, *extra]))


def is_possible(order: Sequence[Operation]) -> bool:
    state = ABSENT
    for place, one in enumerate(order):
        after = one.state_after(state)
        if after is None or any(later.end is not None and later.end < one.begin for later in order[place:]):
            return False
        state = after
    return True


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    """Draw up to six operations with any beginning, end and reply."""
    count = draw(st.integers(1, 6))
    moments = draw(st.permutations(range(2 * count)))
    drawn = []
    for number in range(count):
        begin, end = sorted(moments[2 * number : 2 * number + 2])
        verb = draw(st.sampled_from(Verb))
        values = st.sampled_from([f"v{one}" for one in range(count)])
        over, told, value = "", DONE, ""
        if verb is Verb.READ:
            value = draw(st.one_of(st.just(""), values))
        elif verb is Verb.CREATE:
            value, told = f"v{number}", draw(st.sampled_from([DONE, DONE, EXISTS, UNKNOWN]))
        else:
            value = f"v{number}" if verb is Verb.UPDATE else ""
            over = draw(st.one_of(st.just(""), values))
            told = draw(st.sampled_from([DONE, DONE, MISSING, UNKNOWN, *([CONFLICT] if over else [])]))
        drawn.append(op(begin, None if told is UNKNOWN else end, verb.value, value, over, told))
    return drawn


@given(histories())
def test_the_search_finds_an_order_whenever_there_is_one(history: list[Operation]) -> None:
    assert (judge(history) is None) == has_an_order(history)


def test_every_key_is_judged_by_itself() -> None:
    record = Record()
    for key, seen in (("good", "good-1"), ("stale", "stale-1")):
        for number in (1, 2):
            verb = Verb.CREATE if number == 1 else Verb.UPDATE
            record.add("c", key, verb, record.position(), value=f"{key}-{number}")
        record.add("c", key, Verb.READ, record.position(), value="good-2" if key == "good" else seen)
        record.add("c", key, Verb.READ, record.position(), Outcome.UNKNOWN)
    (finding,) = judge_record(record)
    assert finding.stuck.key == "stale"
    assert [str(one) for one in finding.placed] == [
        "[8, 9] c create stale stale-1: done",
        "[10, 11] c update stale stale-2: done",
    ]


def test_a_long_history_of_many_clients_is_judged_in_few_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A register under 20 clients, half of whose writes get no reply: the memory keeps the search from 20! orders."""
    history, state = [CREATED], "a"
    for turn in range(100):
        begin = 100 * turn + 10
        winner = f"w{turn}"
        history.append(op(begin, begin + 50 if turn % 2 else None, "update", winner, over=state))
        history += [
            op(begin + n, begin + 60, "update", f"l{turn}-{n}", over="a", told=CONFLICT) for n in range(1, 10) if turn
        ]
        history += [op(begin + 70 + n, begin + 90, "read", winner) for n in range(9)]
        state = winner
    monkeypatch.setattr(linearizability, "MAX_CONFIGURATIONS", 20_000)
    assert judge(history) is None


def test_a_search_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linearizability, "MAX_CONFIGURATIONS", 10)
    creations = [op(n, None, "create", f"a{n}") for n in range(20)]
    with pytest.raises(TooManyConfigurationsError):
        judge([*creations, op(30, 31, "read", "b")])
