"""Settings of the token webhook."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from mooring.authn.settings import MAX_CACHE_TTL
from mooring.errors import ConfigError
from mooring.settings.checks import duration_within
from mooring.settings.declaration import Settings, file_setting, setting
from mooring.settings.valuetypes import DURATION, TEXT

VERSIONS = ("v1beta1", "v1")


def _parse_version(text: str, key: str) -> str:
    if text not in VERSIONS:
        raise ConfigError(f'{key}: "{text}" is not known; give {" or ".join(VERSIONS)}')
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings(Settings):
    """Service that answers TokenReviews."""

    heading: ClassVar[str] = "Token webhook"

    authentication_token_webhook_config_file: str = file_setting("Kubeconfig of a service that answers TokenReviews.")
    authentication_token_webhook_version: str = setting(
        TEXT,
        default=VERSIONS[0],
        meaning=f"Version of the TokenReviews it is sent: {' or '.join(VERSIONS)}.",
        metavar="VERSION",
        parse=_parse_version,
    )
    authentication_token_webhook_cache_ttl: timedelta = setting(
        DURATION,
        default=timedelta(minutes=2),
        meaning="For how long its answers are remembered.",
    )

    def __post_init__(self) -> None:
        """Raise ConfigError for answers that would be remembered too long."""
        if self.authentication_token_webhook_config_file:
            duration_within(timedelta(0), MAX_CACHE_TTL)(
                self.authentication_token_webhook_cache_ttl, "authentication-token-webhook-cache-ttl"
            )
