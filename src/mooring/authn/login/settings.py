"""Settings of logins, which trade a credential of a provider for a short-lived one of the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from mooring.settings.checks import duration_within
from mooring.settings.declaration import Settings, setting
from mooring.settings.valuetypes import BOOLEAN, DURATION

MIN_TTL = timedelta(minutes=1)
MAX_TTL = timedelta(hours=24)


def _parse_ttl(ttl: timedelta, key: str) -> timedelta:
    return duration_within(MIN_TTL, MAX_TTL)(ttl, key) if ttl else ttl


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSettings(Settings):
    """Logins."""

    heading: ClassVar[str] = "Logins"

    login_ttl: timedelta = setting(
        DURATION,
        default=timedelta(hours=1),
        meaning="How long the credential lives that `mooring login` gets; 0: no login.",
        parse=_parse_ttl,
    )
    login_from_request_header: bool = setting(
        BOOLEAN,
        default=False,
        meaning="Whether users whom an authenticating proxy names may log in: their credential goes past the proxy.",
    )
