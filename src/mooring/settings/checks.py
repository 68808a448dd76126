"""Checks that several settings share: each takes a value and its key, and returns the value. They raise ConfigError."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from urllib.parse import urlsplit

from mooring.errors import ConfigError
from mooring.settings.addresses import names_user, shown_value


def one_of(choices: Sequence[str]) -> Callable[[str, str], str]:
    """Return a check for one of a few words."""

    def check(text: str, key: str) -> str:
        if text not in choices:
            raise ConfigError(f'{key}: "{text}" is not one of {", ".join(choices)}')
        return text

    return check


def integer_within(least: int, most: int) -> Callable[[int, str], int]:
    """Return a check for whole numbers."""

    def check(value: int, key: str) -> int:
        if not least <= value <= most:
            raise ConfigError(f"{key}: {value} is not a number from {least} to {most}")
        return value

    return check


def duration_within(least: timedelta, most: timedelta) -> Callable[[timedelta, str], timedelta]:
    """Return a check for durations."""

    def check(value: timedelta, key: str) -> timedelta:
        if not least <= value <= most:
            raise ConfigError(f"{key}: give a duration from {_whole_hours(least)} to {_whole_hours(most)}")
        return value

    return check


def _whole_hours(value: timedelta) -> str:
    """Return `24h`, or seconds when there is a part of an hour."""
    seconds = int(value.total_seconds())
    return f"{seconds // 3600}h" if seconds and seconds % 3600 == 0 else f"{seconds}s"


def https_url(text: str, key: str) -> str:
    """Return `text` when it is an https URL of a host, without user, query or fragment."""
    if names_user(text):
        raise ConfigError(f"{key}: the URL must have no user, query or fragment; in a path, @ is written as %40")
    try:
        parts = urlsplit(text)
        named = parts.scheme == "https" and parts.hostname and parts.port != 0
    except ValueError:
        named = False
    if not named or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigError(f"{key}: {shown_value(text)} is not an https URL")
    if "?" in text or "#" in text:
        raise ConfigError(f"{key}: the URL must have no user, query or fragment")
    return text
