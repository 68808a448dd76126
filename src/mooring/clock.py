"""`Clock`, the only reader of real time, and the text forms of times and durations.

Rules kept here: pure rooms receive `now` as a value; async rooms receive a `Clock`. No other module calls `datetime.now` or
`time.time` (ruff's banned-api list fails the build). All datetimes are timezone-aware UTC.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Protocol

ZERO_TIME = datetime.min.replace(tzinfo=UTC)
"""Go's zero time, 0001-01-01T00:00:00Z, which stands for an unset time in an object."""

JUMP_SECONDS = 30.0
"""Seconds after which a wait for a moment of the wall clock notices that it was set."""
STEP = timedelta(seconds=5)
"""Corrections of a clock that are not a jump: those of a time service are smaller."""


class Clock(Protocol):
    """Wall time, monotonic time and sleeping, as one value that a test can replace."""

    def now(self) -> datetime:
        """Return the wall-clock time, aware and in UTC."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Sleep for `seconds` of this clock."""


async def wait_until(clock: Clock, moment: datetime) -> None:
    """Return when the wall clock reads `moment` or later, or has been set back; callers read it again.

    Timers count seconds in which the machine ran: a suspended laptop, a virtual machine that is restored from disk, and a clock
    that is set move the wall clock only. So it is read again every JUMP_SECONDS.
    """
    before = clock.now()
    while (left := (moment - before).total_seconds()) > 0:
        await clock.sleep(min(left, JUMP_SECONDS))
        now = clock.now()
        if now < before - STEP:
            return
        before = max(before, now)


def doubling(first: float, last: float) -> Iterator[float]:
    """Yield pauses between attempts, without end: each is twice the one before, up to `last`."""
    while True:
        yield first
        first = min(2 * first, last)


class SystemClock:
    """The clock of the operating system."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        import asyncio  # imported late: it would double the start time of `mooring credential`, which never sleeps

        await asyncio.sleep(seconds)


def rfc3339(moment: datetime) -> str:
    """Return `2026-01-02T03:04:05Z`: second precision, as metav1.Time marshals."""
    return moment.astimezone(UTC).isoformat(timespec="seconds").removesuffix("+00:00") + "Z"


def rfc3339_micro(moment: datetime) -> str:
    """Return `2026-01-02T03:04:05.000006Z`, as metav1.MicroTime marshals."""
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return moment.isoformat(timespec="microseconds")[: -len("+00:00")] + "Z"


def parse_rfc3339(text: str) -> datetime:
    """Parse an RFC 3339 time with `T`, seconds, optional fraction, and `Z` or a numeric offset; return it in UTC.

    Raises ValueError for anything else; callers decide whether that means invalid or expired.
    """
    if len(text) < 20 or not text.isascii() or text[10] not in "Tt":
        raise ValueError("not an RFC 3339 time")
    head, fraction, zone = text[:19], "", text[19:]
    if zone[:1] in (".", ","):
        digits = len(zone) - len(zone[1:].lstrip("0123456789")) - 1
        fraction, zone = zone[1 : 1 + digits], zone[1 + digits :]
        if not fraction:
            raise ValueError("not an RFC 3339 time")
    if head[4] != "-" or head[7] != "-" or head[13] != ":" or head[16] != ":":
        raise ValueError("not an RFC 3339 time")  # `fromisoformat` also takes weeks, and times without colons
    moment = datetime.fromisoformat(head).replace(tzinfo=UTC)
    moment += timedelta(microseconds=int((fraction + "000000")[:6]))
    if zone in ("Z", "z"):
        return moment
    if len(zone) != 6 or zone[0] not in "+-" or zone[3] != ":" or not (zone[1:3] + zone[4:]).isdigit():
        raise ValueError("not an RFC 3339 time")
    hours, minutes = int(zone[1:3]), int(zone[4:])
    if hours > 24 or minutes > 60:
        raise ValueError("not an RFC 3339 time")
    offset = timedelta(hours=hours, minutes=minutes)
    try:
        return moment - offset if zone[0] == "+" else moment + offset
    except OverflowError:
        raise ValueError("an RFC 3339 time outside the years 1 to 9999") from None


def moment_of(text: str | None) -> datetime | None:
    """Return the time in a field of an object; None for an absent field, and for a text that is no time."""
    try:
        return parse_rfc3339(text or "")
    except ValueError:
        return None


def human_duration(span: timedelta) -> str:
    """Return a duration as kubectl prints ages: `90s`, `5m3s`, `2h`, `7d3h`, `2y10d`; `<invalid>` below minus one second."""
    total = int(span.total_seconds())  # truncated towards zero as in Go: half a second in the future prints 0s
    if total < -1:
        return "<invalid>"
    seconds = max(total, 0)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    years = days // 365
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _units(minutes, "m", seconds % 60, "s")
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return _units(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _units(days, "d", hours % 24, "h")
    if years < 2:
        return f"{days}d"
    if years < 8:
        return _units(years, "y", days % 365, "d")
    return f"{years}y"


def _units(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"


def gap(span: timedelta) -> str:
    """Return the distance to a missed time as `40s`, `5m3s`, `3h12m`, rounded up to the second so that no miss prints `0s`."""
    second = timedelta(seconds=1)
    return human_duration(-(-span // second) * second)
