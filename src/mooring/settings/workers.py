"""Settings of the processes of one server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooring.errors import ConfigError
from mooring.settings.declaration import Settings, setting
from mooring.settings.valuetypes import COUNT

AUTO = 0
"""One worker for each CPU that this process may use."""
MAX_WORKERS = 32
"""Each worker holds every object in memory, and writes go through one file or one etcd: more gain nothing."""


def _parse_count(text: str, key: str) -> int:
    if text == "auto":
        return AUTO
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:4]) <= MAX_WORKERS):
        raise ConfigError(f"{key}: give a number from 1 to {MAX_WORKERS}, or auto")
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersSettings(Settings):
    """Number of processes that serve one port."""

    heading: ClassVar[str] = "Workers"

    workers: int = setting(
        COUNT,
        default="1",
        meaning="Processes that serve the port together: a number, or auto for one on each CPU that this process may use.",
        metavar="N",
        parse=_parse_count,
        everyday=True,
    )
