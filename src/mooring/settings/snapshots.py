"""Times of a schedule in the notation of cron, as CronJobs and k3s write it.

Rules kept here:
* Five fields (minute, hour, day of month, month, day of week) with `*`, lists, ranges, steps, and English names of months and days.
* Or a name: `@hourly`, `@daily`, `@midnight`, `@weekly`, `@monthly`, `@yearly`, `@annually`; or `@every` and a duration.
* Times are UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from mooring.duration import parse_long_duration
from mooring.errors import ConfigError
from mooring.settings.declaration import BOOLEAN, INTEGER, TEXT, Settings, integer_within, setting

LEAST_INTERVAL = timedelta(minutes=1)
"""Shortest interval of `@every`, as short as cron's."""
MAX_TEXT = 256
"""Characters of a schedule."""
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: tuple[tuple[str, int, int, Mapping[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    ("day of week", 0, 7, {name: number for number, name in enumerate(_WEEKDAYS)}),
)
_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


@dataclass(frozen=True, slots=True)
class Schedule:
    """Recurring times."""

    text: str
    every: timedelta | None = None
    """Interval of `@every`; None: the fields count."""
    minutes: frozenset[int] = frozenset()
    hours: frozenset[int] = frozenset()
    days: frozenset[int] = frozenset()
    months: frozenset[int] = frozenset()
    weekdays: frozenset[int] = frozenset()
    """0 is Sunday."""
    either_day: bool = False
    """A day of the month or a day of the week suffices."""

    def next_after(self, moment: datetime) -> datetime:
        """Return the first time after `moment`."""
        if self.every is not None:
            return moment + self.every
        day = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
        # It ends, because a schedule that never comes is refused.
        while True:
            if self._has_day(day):
                for hour in sorted(self.hours):
                    for minute in sorted(self.minutes):
                        if (hour, minute) >= (day.hour, day.minute):
                            return day.replace(hour=hour, minute=minute)
            day = day.replace(hour=0, minute=0) + timedelta(days=1)

    def _has_day(self, day: datetime) -> bool:
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return day.month in self.months and (in_month or in_week if self.either_day else in_month and in_week)


def parse_schedule(text: str, key: str) -> Schedule | None:
    """Return the schedule of a setting, None for an empty text. Raises ConfigError that begins with the key."""
    text = text.strip()
    if not text:
        return None
    try:
        return _parse(text)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from None


def _parse(text: str) -> Schedule:
    name, _, rest = text.partition(" ")
    if name == "@every":
        return Schedule(text, every=_interval(rest))
    words = _NAMED.get(text, text).split()
    if len(words) != len(_FIELDS) or len(text) > MAX_TEXT:
        raise ValueError('give five fields, such as "0 */12 * * *", or a name, such as @daily or @every 6h')
    minutes, hours, days, months, weekdays = (_values(word, *field) for word, field in zip(words, _FIELDS, strict=True))
    # Only where the day of the week cannot bring the schedule about. Without this check `next_after` would not end.
    if not any(_comes(day, month) for day in days for month in months) and words[4].startswith("*"):
        raise ValueError("no month has that day")
    return Schedule(
        text,
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        # 7 is Sunday, too.
        weekdays=frozenset(one % 7 for one in weekdays),
        # When both days are restricted, either matches (crontab(5)).
        either_day=not words[2].startswith("*") and not words[4].startswith("*"),
    )


def _interval(text: str) -> timedelta:
    try:
        interval = parse_long_duration(text.strip())
    except ValueError:
        raise ValueError("give a duration after @every, such as @every 6h") from None
    if interval < LEAST_INTERVAL:
        raise ValueError("the shortest interval is 1m")
    return interval


def _comes(day: int, month: int) -> bool:
    """Return whether a month has that day in some year."""
    return day <= (29 if month == 2 else 30 if month in (4, 6, 9, 11) else 31)


def _values(word: str, name: str, least: int, most: int, names: Mapping[str, int]) -> frozenset[int]:
    found: set[int] = set()
    for item in word.split(","):
        span, slash, step_text = item.partition("/")
        first_text, dash, last_text = span.partition("-")
        step = _number(step_text, name, {}) if slash else 1
        if span == "*":
            first, last = least, most
        else:
            first = _number(first_text, name, names)
            last = _number(last_text, name, names) if dash else most if slash else first
        if not least <= first <= last <= most or not 1 <= step <= most:
            raise ValueError(f'"{item}" is no {name}: give numbers from {least} to {most}')
        found.update(range(first, last + 1, step))
    return frozenset(found)


def _number(text: str, name: str, names: Mapping[str, int]) -> int:
    if text.lower() in names:
        return names[text.lower()]
    if not (text.isascii() and text.isdigit() and len(text) <= 2):
        raise ValueError(f'"{text[:16]}" is no {name}')
    return int(text)


MAX_KEPT = 10_000
"""Snapshots of one directory: each is listed at every look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings(Settings):
    """Snapshots that a server makes by itself."""

    heading: ClassVar[str] = "Snapshots"

    snapshot_schedule_cron: Schedule | None = setting(
        TEXT,
        default="",
        meaning='Times of snapshots in the notation of cron, UTC, such as "0 */12 * * *"; also @daily, @every 6h. Empty: none.',
        metavar="SCHEDULE",
        parse=parse_schedule,
        everyday=True,
    )
    snapshot_retention: int = setting(
        INTEGER, default=5, meaning="Number of scheduled snapshots that are kept.", parse=integer_within(1, MAX_KEPT)
    )
    snapshot_dir: str = setting(
        TEXT,
        default="",
        meaning="Directory of snapshots.",
        default_note="snapshots in the data directory",
        metavar="DIR",
    )
    snapshot_compress: bool = setting(BOOLEAN, default=True, meaning="Compress scheduled snapshots.")

    def directory(self, data_dir: str) -> str:
        """Return the directory of snapshots."""
        return self.snapshot_dir or f"{data_dir.rstrip('/')}/snapshots"
