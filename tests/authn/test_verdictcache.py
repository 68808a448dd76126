"""Remembered verdicts.

Source: docs/protocol/authentication.md#caching.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mooring.authn.verdict import Accepted, NotMine, Rejected, Verdict
from mooring.authn.verdictcache import VerdictCache
from mooring.identity import UserInfo

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ALICE = Accepted(UserInfo("alice"))
TEN = timedelta(seconds=10)
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("verdict", "accepted", "refused", "after", "known"),
    [
        pytest.param(ALICE, TEN, MINUTE, timedelta(seconds=9), True, id="an acceptance within its time"),
        pytest.param(ALICE, TEN, MINUTE, TEN, False, id="an acceptance at the end of its time"),
        pytest.param(Rejected("no"), MINUTE, TEN, timedelta(seconds=9), True, id="a refusal within its own time"),
        pytest.param(NotMine(), MINUTE, TEN, TEN, False, id="not mine is a refusal here"),
        pytest.param(ALICE, timedelta(0), TEN, timedelta(0), False, id="zero keeps no acceptance"),
        pytest.param(Rejected("no"), TEN, timedelta(0), timedelta(0), False, id="zero keeps no refusal"),
        pytest.param(ALICE, TEN, TEN, timedelta(seconds=-1), False, id="a clock that went back forgets"),
    ],
)
def test_how_long(verdict: Verdict, accepted: timedelta, refused: timedelta, after: timedelta, known: bool) -> None:
    cache = VerdictCache(b"k" * 32, accepted, refused)
    place = cache.place(b"token", b"audience")
    cache.put(place, verdict, NOW)
    assert cache.get(place, NOW + after) == (verdict if known else None)
    assert len(cache) == int(known)


def test_the_longest_unused_goes_first() -> None:
    cache = VerdictCache(b"k" * 32, TEN, most=2)
    one, two, three = (cache.place(part) for part in (b"1", b"2", b"3"))
    cache.put(one, ALICE, NOW)
    cache.put(two, ALICE, NOW)
    cache.get(one, NOW)
    cache.put(three, ALICE, NOW)
    assert [cache.get(place, NOW) is not None for place in (one, two, three)] == [True, False, True]


def test_clearing_forgets() -> None:
    cache = VerdictCache(b"k" * 32, TEN)
    cache.put(cache.place(b"1"), ALICE, NOW)
    cache.clear()
    assert cache.get(cache.place(b"1"), NOW) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param((b"ab", b"c"), (b"a", b"bc"), id="parts are told apart"),
        pytest.param((b"a",), (b"a", b""), id="an empty part counts"),
    ],
)
def test_places_differ(one: tuple[bytes, ...], other: tuple[bytes, ...]) -> None:
    cache = VerdictCache(b"k" * 32, TEN)
    assert cache.place(*one) != cache.place(*other)


def test_another_process_has_other_places() -> None:
    assert VerdictCache(b"k" * 32, TEN).place(b"t") != VerdictCache(b"l" * 32, TEN).place(b"t")
