"""Schedules in the notation of cron."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mooring.errors import ConfigError
from mooring.settings.snapshots import parse_schedule

FROM = datetime(2026, 11, 22, 14, 55, 24, tzinfo=UTC)  # a Sunday


def following(text: str, count: int, moment: datetime = FROM) -> list[str]:
    schedule = parse_schedule(text, "key")
    assert schedule is not None
    found = []
    for _ in range(count):
        moment = schedule.next_after(moment)
        found.append(f"{moment:%Y-%m-%d %H:%M:%S}")
    return found


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("* * * * *", ["2026-11-22 14:56:00", "2026-11-22 14:57:00"]),
        ("0 */12 * * *", ["2026-11-23 00:00:00", "2026-11-23 12:00:00"]),
        (
            "*/20 14-15 * * *",
            ["2026-11-22 15:00:00", "2026-11-22 15:20:00", "2026-11-22 15:40:00", "2026-11-23 14:00:00"],
        ),
        ("5,50/4 3 * * *", ["2026-11-23 03:05:00", "2026-11-23 03:50:00", "2026-11-23 03:54:00"]),
        ("0 0 1 jan *", ["2027-01-01 00:00:00", "2028-01-01 00:00:00"]),
        (
            "0 6 * * MON-wed",
            ["2026-11-23 06:00:00", "2026-11-24 06:00:00", "2026-11-25 06:00:00", "2026-11-30 06:00:00"],
        ),
        ("0 6 * * 7", ["2026-11-29 06:00:00"]),
        ("0 6 1 * 1", ["2026-11-23 06:00:00", "2026-11-30 06:00:00", "2026-12-01 06:00:00"]),
        ("0 6 30 2 1", ["2027-02-01 06:00:00"]),
        ("0 6 29 2 */7", ["2032-02-29 06:00:00", "2060-02-29 06:00:00"]),
        ("0 0 31 4,5 *", ["2027-05-31 00:00:00"]),
        ("@hourly", ["2026-11-22 15:00:00"]),
        ("@weekly", ["2026-11-29 00:00:00"]),
        (" @daily ", ["2026-11-23 00:00:00"]),
        ("@every 90m", ["2026-11-22 16:25:24", "2026-11-22 17:55:24"]),
    ],
)
def test_the_times_of_a_schedule(text: str, times: list[str]) -> None:
    assert following(text, len(times)) == times


def test_the_present_minute_is_over() -> None:
    assert following("55 14 * * *", 1, FROM.replace(second=0)) == ["2026-11-23 14:55:00"]


def test_an_empty_text_is_no_schedule() -> None:
    assert parse_schedule("  ", "key") is None


def test_an_interval_is_a_duration() -> None:
    schedule = parse_schedule("@every 6h", "key")
    assert schedule is not None
    assert schedule.every == timedelta(hours=6)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("0 0 * *", "give five fields"),
        ("0 0 * * * *", "give five fields"),
        ("@sometimes", "give five fields"),
        ("0 0 * * " + "1," * 200 + "1", "give five fields"),
        ("60 0 * * *", "is no minute: give numbers from 0 to 59"),
        ("0 24 * * *", "is no hour"),
        ("0 0 0 * *", "is no day of month"),
        ("0 0 * 13 *", "is no month"),
        ("0 0 * * 8", "is no day of week"),
        ("0 0 * * someday", "is no day of week"),
        ("5-1 * * * *", "is no minute"),
        ("*/0 * * * *", "is no minute"),
        ("*/ * * * *", "is no minute"),
        ("-1 * * * *", "is no minute"),
        ("٣ * * * *", "is no minute"),
        ("0 0 31 2,4 *", "no month has that day"),
        ("@every", "give a duration"),
        ("@every day", "give a duration"),
        ("@every 30s", "the shortest interval is 1m"),
    ],
)
def test_a_mistake_is_told_with_its_key(text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part) as caught:
        parse_schedule(text, "snapshot-schedule-cron")
    assert str(caught.value).startswith("snapshot-schedule-cron: ")
