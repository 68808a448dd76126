"""Settings of custom authenticators, which only the configuration file can hold."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Any, ClassVar

from mooring.authn.settings import CACHE_TTL, MAX_CACHE_TTL
from mooring.errors import ConfigError
from mooring.settings.checks import duration_within
from mooring.settings.declaration import Settings, setting
from mooring.settings.valuetypes import ValueType, duration_from_file

DEADLINE = timedelta(seconds=5)
MAX_DEADLINE = timedelta(minutes=1)
MAX_AUTHENTICATORS = 16
"""Each judges every credential that no other authenticator recognises."""
_KEYS = ("name", "class", "deadline", "cache-ttl", "options")
_DURATIONS = ("deadline", "cache-ttl")
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomAuthenticatorEntry:
    """One entry of `authenticators`: `location` is `module:Class`. The options may hold secrets."""

    name: str
    location: str
    deadline: timedelta = DEADLINE
    cache_ttl: timedelta = CACHE_TTL
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)


def _entries_from_file(value: Any) -> tuple[Any, ...]:
    """Return the entries with their durations read; `parse_entries` checks the rest. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError("give a list of mappings with name and class")
    return tuple(_with_durations(value))


def _with_durations(entries: list[Any]) -> Iterator[Any]:
    for place, entry in enumerate(entries):
        if not isinstance(entry, dict):
            yield entry  # `parse_entries` rejects it
            continue
        yield {
            key: _duration(f"[{place}].{key}", value) if key in _DURATIONS else value for key, value in entry.items()
        }


def _duration(path: str, value: Any) -> timedelta:
    try:
        return duration_from_file(value)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse_entries(entries: tuple[Any, ...], key: str) -> tuple[CustomAuthenticatorEntry, ...]:
    """Return the checked entries. Raises ConfigError."""
    if len(entries) > MAX_AUTHENTICATORS:
        raise ConfigError(f"{key}: {len(entries)} are more than {MAX_AUTHENTICATORS}")
    parsed = tuple(_parse_entry(f"{key}[{place}]", entry) for place, entry in enumerate(entries))
    names = [entry.name for entry in parsed]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ConfigError(f'{key}[{place}].name: "{name}" is taken already')
    return parsed


def _parse_entry(path: str, entry: Any) -> CustomAuthenticatorEntry:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{path}: give a mapping with name and class")
    for key in entry:
        if key not in _KEYS:
            raise ConfigError(f'{path}: "{key}" is not known; there are name, class, deadline, cache-ttl, and options')
    name, location, options = entry.get("name"), entry.get("class"), entry.get("options", {})
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{path}.name: give a name of lower case letters, digits and dashes, such as ldap")
    if not isinstance(location, str) or not _CLASS.fullmatch(location):
        raise ConfigError(f"{path}.class: give module:Class, such as company.ldap:LdapAuthenticator")
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise ConfigError(f"{path}.options: give a mapping")
    deadline, ttl = entry.get("deadline", DEADLINE), entry.get("cache-ttl", CACHE_TTL)
    for key, duration in (("deadline", deadline), ("cache-ttl", ttl)):
        if not isinstance(duration, timedelta):
            raise ConfigError(f"{path}.{key}: give a duration, such as 5s")
    return CustomAuthenticatorEntry(
        name=name,
        location=location,
        deadline=duration_within(timedelta(milliseconds=1), MAX_DEADLINE)(deadline, f"{path}.deadline"),
        cache_ttl=duration_within(timedelta(0), MAX_CACHE_TTL)(ttl, f"{path}.cache-ttl"),
        options=MappingProxyType(dict(options)),
    )


ENTRIES: ValueType[tuple[Any, ...]] = ValueType("list of mappings", _entries_from_file, tuple)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomSettings(Settings):
    """Authenticators of the operator's own."""

    heading: ClassVar[str] = "Custom authenticators"

    authenticators: tuple[CustomAuthenticatorEntry, ...] = setting(
        ENTRIES,
        default=(),
        meaning="Authenticators of your own: each has `name`, `class` (`module:Class`), and may have `deadline`, `cache-ttl` and "
        "`options`.",
        flag=False,
        secret=True,
        parse=parse_entries,
    )
