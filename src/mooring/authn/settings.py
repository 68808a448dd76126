"""Settings that several authenticators share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from mooring.settings.checks import duration_within
from mooring.settings.declaration import Settings, setting
from mooring.settings.valuetypes import DURATION

CACHE_TTL = timedelta(seconds=10)
"""kube-apiserver remembers an accepted token for as long."""
MAX_CACHE_TTL = timedelta(hours=1)
"""A verdict of a remote service may be wrong by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings(Settings):
    """Memory of accepted passwords. A custom authenticator has a `cache-ttl` of its own."""

    heading: ClassVar[str] = "Cache of verdicts"

    authentication_cache_ttl: timedelta = setting(
        DURATION,
        default=CACHE_TTL,
        meaning="For how long an accepted password, and what an authenticator of your own accepted, is remembered; 0: not at all.",
        parse=duration_within(timedelta(0), MAX_CACHE_TTL),
    )
