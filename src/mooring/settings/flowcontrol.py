"""Settings of flow control."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from mooring.errors import ConfigError
from mooring.settings.declaration import Settings, setting
from mooring.settings.valuetypes import NUMBER


def _parse_rate(value: float, key: str) -> float:
    if not 0 <= value < math.inf:
        raise ConfigError(f"{key}: give 0 (no fixed rate) or a positive number")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowControlSettings(Settings):
    """Rates of requests."""

    heading: ClassVar[str] = "Flow control"

    anonymous_requests_per_second: float = setting(
        NUMBER,
        default=0.0,
        meaning="Rate limit of anonymous requests, per second; 0: only the limits of all requests apply.",
        metavar="RATE",
        parse=_parse_rate,
    )
