"""Text forms of times and durations (RFC 3339; metav1.Time, metav1.MicroTime)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.clock import (
    JUMP_SECONDS,
    STEP,
    SystemClock,
    doubling,
    gap,
    parse_rfc3339,
    rfc3339,
    rfc3339_micro,
    wait_until,
)
from tests.support.manualclock import EPOCH, ManualClock, settle

MOMENTS = st.datetimes(timezones=st.just(UTC))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02t03:04:05z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05.25Z", datetime(2026, 1, 2, 3, 4, 5, 250_000, tzinfo=UTC)),
        ("2026-01-02T03:04:05,25Z", datetime(2026, 1, 2, 3, 4, 5, 250_000, tzinfo=UTC)),
        ("2026-01-02T03:04:05.123456789Z", datetime(2026, 1, 2, 3, 4, 5, 123_456, tzinfo=UTC)),
        ("2026-01-02T03:04:05+02:30", datetime(2026, 1, 2, 0, 34, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05-02:30", datetime(2026, 1, 2, 5, 34, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05.5-00:30", datetime(2026, 1, 2, 3, 34, 5, 500_000, tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_time_is_parsed(text: str, moment: datetime) -> None:
    assert parse_rfc3339(text) == moment
    assert parse_rfc3339(text).tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("2026-01-02", id="a date"),
        pytest.param("2026-01-02T03:04:05", id="no zone"),
        pytest.param("2026-01-02 03:04:05Z", id="a space for T"),
        pytest.param("2026-01-02T3:04:05Z1", id="an hour of one digit"),
        pytest.param("2026-01-02T03:04:05.Z", id="a fraction without digits"),
        pytest.param("2026-01-02T03:04:05X", id="an unknown zone"),
        pytest.param("2026-01-02T03:04:05+0230", id="a zone without a colon"),
        pytest.param("2026-01-02T03:04:05+ab:cd", id="a zone that is no number"),
        pytest.param("2026-01-02T03:04:05+25:00", id="a zone of 25 hours"),
        pytest.param("2026-01-02T03:04:05+02:61", id="a zone of 61 minutes"),
        pytest.param("2026-13-02T03:04:05Z", id="month 13"),
        pytest.param("2026-02-30T03:04:05Z", id="30 February"),
        pytest.param("2026-01-02T03:04:60Z", id="a leap second"),
        pytest.param("0001-01-01T00:00:00+01:00", id="before the year 1"),
        pytest.param("9999-12-31T23:59:59-01:00", id="after the year 9999"),
        pytest.param("２０２６-01-02T03:04:05Z", id="digits of another script"),
    ],
)
def test_anything_else_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_rfc3339(text)


@given(st.text(max_size=40) | st.from_regex(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d([.,]\d{0,9})?([zZ]|[+-]\d\d:\d\d)?"))
def test_any_text_is_a_time_or_a_value_error(text: str) -> None:
    try:
        parse_rfc3339(text)
    except ValueError:
        return


@given(MOMENTS)
def test_formatting_and_parsing_are_inverse(moment: datetime) -> None:
    assert parse_rfc3339(rfc3339_micro(moment)) == moment
    assert parse_rfc3339(rfc3339(moment)) == moment.replace(microsecond=0)
    assert len(rfc3339(moment)) == 20


def test_times_of_other_zones_are_written_as_utc() -> None:
    east = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=2)))
    assert rfc3339(east) == "2026-01-02T01:04:05Z"
    assert rfc3339_micro(east) == "2026-01-02T01:04:05.000006Z"


def test_the_system_clock_advances_and_is_in_utc() -> None:
    clock = SystemClock()
    assert clock.now().tzinfo is UTC
    before = clock.monotonic()
    asyncio.run(clock.sleep(0))
    assert clock.monotonic() >= before


@pytest.mark.parametrize(
    ("span", "text"),
    [
        pytest.param(timedelta(microseconds=1), "1s", id="the least miss is a second"),
        pytest.param(timedelta(seconds=40), "40s", id="seconds"),
        pytest.param(timedelta(seconds=40, microseconds=1), "41s", id="a begun second counts"),
        pytest.param(timedelta(hours=3), "3h", id="hours"),
        pytest.param(timedelta(days=400), "400d", id="days"),
    ],
)
def test_gap(span: timedelta, text: str) -> None:
    assert gap(span) == text


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(0)), timezone(timedelta(hours=2))], ids=str)
def test_a_micro_time_is_written_in_utc(zone: timezone) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC).astimezone(zone)
    assert rfc3339_micro(moment) == "2026-01-02T03:04:05.000006Z"


@pytest.mark.parametrize(
    ("jump", "seconds", "is_over"),
    [
        pytest.param(timedelta(0), 0.0, False, id="no time has passed"),
        pytest.param(timedelta(0), 3599.0, False, id="the moment has not come"),
        pytest.param(timedelta(0), 3600.0, True, id="the moment has come"),
        pytest.param(timedelta(hours=1), JUMP_SECONDS, True, id="the clock was set past the moment"),
        pytest.param(timedelta(minutes=59), 59.0, False, id="the clock was set to a minute before it"),
        pytest.param(timedelta(minutes=59), 60.0, True, id="and that minute is over"),
        pytest.param(timedelta(days=-1), JUMP_SECONDS, True, id="the clock was set back: the caller reads it again"),
        pytest.param(-STEP, 3600.0, False, id="a time service corrects the clock, which is no jump"),
        pytest.param(-STEP, 3600.0 + STEP.total_seconds(), True, id="and the moment is that of the clock"),
    ],
)
def test_a_wait_for_a_moment_ends_when_the_wall_clock_says_so(jump: timedelta, seconds: float, is_over: bool) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        waiting = asyncio.ensure_future(wait_until(clock, EPOCH + timedelta(hours=1)))
        await settle()
        clock.set(clock.now() + jump)
        await clock.advance(seconds)
        assert waiting.done() is is_over
        waiting.cancel()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("first", "last", "pauses"),
    [
        pytest.param(0.5, 5.0, [0.5, 1.0, 2.0, 4.0, 5.0, 5.0], id="the last one is not a doubled one"),
        pytest.param(1.0, 4.0, [1.0, 2.0, 4.0, 4.0], id="the last one is a doubled one"),
        pytest.param(3.0, 3.0, [3.0, 3.0], id="always the same"),
    ],
)
def test_pauses_double_up_to_the_last(first: float, last: float, pauses: list[float]) -> None:
    assert list(islice(doubling(first, last), len(pauses))) == pauses
