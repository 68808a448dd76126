"""Durations the way Go writes them: `1h30m`, `1.5s`, `250ms`.

Rules kept here:
* Reading accepts what Go's `time.ParseDuration` accepts: an optional sign, then one or more numbers with an optional
  fraction, each with a unit (ns, us, µs, ms, s, m, h); a bare `0` is the only number without a unit. Anything else is a
  ValueError in Go's words.
* Settings and flags take `d` (24 hours) and `w` (7 days), too (`parse_long_duration`): ends of tokens are days away.
  Values of Kubernetes' own formats and of the protocol do not.
* The range is Go's (63 bits of nanoseconds, about 292 years); the resolution is Python's: what is below a microsecond is
  dropped.
* Writing gives what Go's `Duration.String` gives, so reading what was written returns the same duration.

Source: the Go standard library's documentation of package time; docs/protocol/requests.md#timeout (`?timeout=`),
docs/protocol/bootstrap-tokens.md#the-kubeadm-token-commands (`--ttl`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import timedelta

_MICRO = 1_000
_SECOND = 1_000_000_000
_UNITS = {
    "ns": 1,
    "us": _MICRO,
    "\u00b5s": _MICRO,  # micro sign
    "\u03bcs": _MICRO,  # Greek letter mu
    "ms": 1_000_000,
    "s": _SECOND,
    "m": 60 * _SECOND,
    "h": 3600 * _SECOND,
}
_LONG_UNITS = _UNITS | {"d": 24 * 3600 * _SECOND, "w": 7 * 24 * 3600 * _SECOND}
_LONGEST = 2**63 - 1
"""Nanoseconds that fit Go's int64."""
MAX_DURATION = 256
"""Characters of a duration, which may have any number of terms; real ones have one to three."""
_DIGITS = 19
"""Digits of 2**63: longer numbers overflow whatever their unit, and are refused before they cost anything."""

_term = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]*)").match


def parse_duration(text: str) -> timedelta:
    """The duration `text` says; ValueError in Go's words when it says none."""
    return _parse(text, _UNITS)


def parse_long_duration(text: str) -> timedelta:
    """Return the duration in a text of a person, which may be written in days and weeks as well. Raises ValueError."""
    return _parse(text, _LONG_UNITS)


def _parse(text: str, units: Mapping[str, int]) -> timedelta:
    quoted = json.dumps(text, ensure_ascii=False)
    invalid = f"time: invalid duration {quoted}"
    sign = -1 if text[:1] == "-" else 1
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return timedelta()
    if not rest or len(text) > MAX_DURATION:
        raise ValueError(invalid)
    total = 0
    while rest:
        found = _term(rest)
        assert found is not None  # every part is optional
        whole, fraction, unit = found[1].lstrip("0"), found[2] or "", found[3]
        if (not found[1] and not fraction) or len(whole) > _DIGITS:
            raise ValueError(invalid)
        if not unit:
            raise ValueError(f"time: missing unit in duration {quoted}")
        if unit not in units:
            raise ValueError(f"time: unknown unit {json.dumps(unit, ensure_ascii=False)} in duration {quoted}")
        scale = units[unit]
        fraction = fraction[:_DIGITS]
        total += int(whole or "0") * scale + int(fraction or "0") * scale // 10 ** len(fraction)
        if total > _LONGEST:
            raise ValueError(invalid)
        rest = rest[found.end() :]
    shortest = 1 if total else 0  # 1ns is not 0, which means for ever, or none, in many settings
    return sign * timedelta(microseconds=max(total // _MICRO, shortest))


def format_duration(duration: timedelta) -> str:
    """`1h30m0s`, `1.5s`, `100ms`, `25µs`, `0s`."""
    micros = duration // timedelta(microseconds=1)
    sign = "-" if micros < 0 else ""
    micros = abs(micros)
    if micros == 0:
        return "0s"
    if micros < 1_000:
        return f"{sign}{micros}µs"
    if micros < 1_000_000:
        return f"{sign}{_decimal(micros, 1_000)}ms"
    minutes, rest = divmod(micros, 60_000_000)
    seconds = f"{_decimal(rest, 1_000_000)}s"
    if minutes == 0:
        return sign + seconds
    hours, minutes = divmod(minutes, 60)
    return f"{sign}{hours}h{minutes}m{seconds}" if hours else f"{sign}{minutes}m{seconds}"


def _decimal(value: int, unit: int) -> str:
    """`value / unit` without trailing zeros; `unit` is a power of ten."""
    whole, part = divmod(value, unit)
    digits = f"{part:0{len(str(unit)) - 1}d}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)
