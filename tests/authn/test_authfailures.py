"""Laws of the limiter of failed authentications."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.authn.authfailures import AuthFailureLimiter, LocalBuckets


def test_a_burst_is_answered_and_then_refused_until_one_more_would_be_heard() -> None:
    guesses = AuthFailureLimiter(burst=3, per_second=0.5)
    assert [guesses.failed("a", 10.0) for _ in range(5)] == [0.0, 0.0, 0.0, 2.0, 2.0]
    assert guesses.failed("a", 11.0) == 1.0
    assert guesses.failed("a", 12.0) == 0.0
    assert guesses.counters.failures == 7
    assert guesses.counters.refused == 3


def test_one_source_does_not_slow_another() -> None:
    guesses = AuthFailureLimiter(burst=1)
    guesses.failed("a", 0.0)
    assert guesses.failed("a", 0.0) > 0
    assert guesses.failed("b", 0.0) == 0.0


def test_a_scan_of_ten_thousand_guesses_is_mostly_refused() -> None:
    guesses = AuthFailureLimiter()
    answered = sum(guesses.failed("a", number / 1000) == 0.0 for number in range(10_000))
    assert answered == 20 + 9  # the burst, and what refilled in ten seconds


def test_a_source_is_exhausted_while_its_next_failure_would_be_refused() -> None:
    guesses = AuthFailureLimiter(burst=2, per_second=0.5)
    assert not guesses.exhausted("a", 0.0), "a source that never failed"
    guesses.failed("a", 0.0)
    assert not guesses.exhausted("a", 0.0)
    guesses.failed("a", 0.0)
    assert guesses.exhausted("a", 1.0)
    assert not guesses.exhausted("b", 1.0)
    assert not guesses.exhausted("a", 2.0)
    assert guesses.counters.failures == 2, "asking counts nothing"


@given(st.lists(st.floats(0, 3), max_size=30))
def test_exhausted_says_what_a_failure_would_find(gaps: list[float]) -> None:
    guesses, now = AuthFailureLimiter(burst=3, per_second=0.5), 0.0
    for gap in gaps:
        now += gap
        exhausted = guesses.exhausted("a", now)
        assert exhausted == (guesses.failed("a", now) > 0)


def test_the_table_forgets_the_source_that_failed_longest_ago() -> None:
    table = LocalBuckets(2)
    guesses = AuthFailureLimiter(burst=1, buckets=table)
    for source in ("a", "b", "a", "c"):
        guesses.failed(source, 0.0)
    assert len(table) == 2
    assert guesses.failed("a", 0.0) > 0
    assert guesses.failed("b", 0.0) == 0.0


@pytest.mark.parametrize(("burst", "per_second"), [(0, 1.0), (1, 0.0)], ids=["burst", "rate"])
def test_limits_must_be_positive(burst: int, per_second: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        AuthFailureLimiter(burst, per_second)


def test_a_table_without_places_is_refused() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        LocalBuckets(0)


failures = st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 5)), max_size=120)


@given(failures, st.integers(1, 5), st.sampled_from([0.1, 1.0, 7.0]), st.integers(1, 4))
def test_never_more_than_the_burst_and_what_refilled_and_never_more_sources_than_allowed(
    steps: list[tuple[str, float]], burst: int, per_second: float, max_sources: int
) -> None:
    table = LocalBuckets(max_sources)
    guesses = AuthFailureLimiter(burst, per_second, table)
    now, answered = 0.0, 0
    for source, gap in steps:
        now += gap
        answered += source == "a" and guesses.failed(source, now) == 0.0
        if source != "a" and max_sources == 4:
            guesses.failed(source, now)
        assert len(table) <= max_sources
    assert answered <= burst + now * per_second + 1e-6


@given(failures, st.integers(1, 3))
def test_waiting_as_long_as_told_always_helps(steps: list[tuple[str, float]], burst: int) -> None:
    guesses = AuthFailureLimiter(burst, 0.5)
    now = 0.0
    for source, gap in steps:
        now += gap
        wait = guesses.failed(source, now)
        if wait:
            assert copy.deepcopy(guesses).failed(source, now + wait + 1e-6) == 0.0


@given(st.lists(st.floats(-10, 10), max_size=50))
def test_a_clock_that_goes_back_never_refills(times: list[float]) -> None:
    guesses = AuthFailureLimiter(burst=1, per_second=1.0)
    newest = -100.0
    answered = 0
    for at in times:
        newest = max(newest, at)
        answered += guesses.failed("a", at) == 0.0
    assert answered <= 1 + (newest - times[0] if times else 0)


def test_a_clock_that_goes_back_counts_as_standing_still() -> None:
    guesses = AuthFailureLimiter(burst=1, per_second=1.0)
    assert [guesses.failed("a", at) for at in (10.0, 0.0, 10.5)] == [0.0, 1.0, 0.5]
