"""Durations as Go reads and writes them. Vectors: worked out from the documentation of Go's package time."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.duration import format_duration, parse_duration, parse_long_duration


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", timedelta()),
        ("+0", timedelta()),
        ("5s", timedelta(seconds=5)),
        ("1h30m", timedelta(minutes=90)),
        ("1.5h", timedelta(minutes=90)),
        (".5s", timedelta(milliseconds=500)),
        ("1.s", timedelta(seconds=1)),
        ("-1m", timedelta(minutes=-1)),
        ("+24h0m0s", timedelta(days=1)),
        ("100ms", timedelta(milliseconds=100)),
        ("3us", timedelta(microseconds=3)),
        ("3µs", timedelta(microseconds=3)),
        ("-1ns", timedelta(microseconds=-1)),
        ("0ns", timedelta()),
        ("3μs", timedelta(microseconds=3)),
        ("999ns", timedelta(microseconds=1)),
        ("1500ns", timedelta(microseconds=1)),
        ("0000000000000000000000000001s", timedelta(seconds=1)),
        ("0.33333333333333333333333s", timedelta(microseconds=333333)),
        ("2562047h47m16.854775807s", timedelta(microseconds=(2**63 - 1) // 1000)),
    ],
)
def test_a_duration_is_read_as_go_reads_it(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'time: invalid duration ""'),
        ("-", 'time: invalid duration "-"'),
        ("s", 'time: invalid duration "s"'),
        (".s", 'time: invalid duration ".s"'),
        (" 1s", 'time: invalid duration " 1s"'),
        ("1", 'time: missing unit in duration "1"'),
        ("00", 'time: missing unit in duration "00"'),
        ("1h5", 'time: missing unit in duration "1h5"'),
        ("1d", 'time: unknown unit "d" in duration "1d"'),
        ("1 s", 'time: unknown unit " s" in duration "1 s"'),
        ("1s ", 'time: unknown unit "s " in duration "1s "'),
        ("1e3s", 'time: unknown unit "e" in duration "1e3s"'),
        ("2562048h", 'time: invalid duration "2562048h"'),
        ("9" * 5000 + "h", f'time: invalid duration "{"9" * 5000}h"'),
        ("\u0663s", 'time: invalid duration "\u0663s"'),
    ],
)
def test_what_is_no_duration_is_refused_in_go_words(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_duration(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7d", timedelta(days=7)),
        ("1w", timedelta(weeks=1)),
        ("1w2d3h", timedelta(days=9, hours=3)),
        ("0.5d", timedelta(hours=12)),
        ("-1d", timedelta(days=-1)),
        ("24h0m0s", timedelta(days=1)),
        ("0", timedelta()),
    ],
)
def test_settings_and_flags_have_days_and_weeks(text: str, expected: timedelta) -> None:
    assert parse_long_duration(text) == expected
    assert parse_duration(format_duration(expected)) == expected, "output is Go's"


@pytest.mark.parametrize("text", ["1 d", "d", "1D", "1W", "106752d", "15251w", "1y", "7"])
def test_what_has_no_long_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^time: "):
        parse_long_duration(text)


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(), "0s"),
        (timedelta(hours=24), "24h0m0s"),
        (timedelta(minutes=90, seconds=5), "1h30m5s"),
        (timedelta(minutes=2), "2m0s"),
        (timedelta(seconds=1.5), "1.5s"),
        (timedelta(milliseconds=100), "100ms"),
        (timedelta(microseconds=1100), "1.1ms"),
        (timedelta(microseconds=25), "25µs"),
        (timedelta(seconds=-3), "-3s"),
        (timedelta(hours=-3), "-3h0m0s"),
    ],
)
def test_a_duration_is_written_as_go_writes_it(duration: timedelta, text: str) -> None:
    assert format_duration(duration) == text


@given(st.timedeltas(timedelta(days=-100_000), timedelta(days=100_000)))
def test_reading_what_was_written_gives_the_same_duration(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@given(st.one_of(st.text(max_size=30), st.text(alphabet="0123456789.hmsnuµ+-", max_size=30)))
def test_junk_is_never_more_than_a_value_error(text: str) -> None:
    try:
        parsed = parse_duration(text)
    except ValueError:
        return
    assert parse_duration(format_duration(parsed)) == parsed
