"""Settings of Keystone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from mooring.errors import ConfigError
from mooring.settings.checks import https_url
from mooring.settings.declaration import Settings, file_setting, setting
from mooring.settings.valuetypes import TEXT


def _parse_url(text: str, key: str) -> str:
    if not text:
        return ""
    if re.search(r"/v2(\.0)?/?$", text):
        raise ConfigError(f'{key}: "{text}" is of version 2.0, which Keystone has removed; give the URL of version 3')
    return https_url(text, key).rstrip("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeystoneSettings(Settings):
    """OpenStack identity service that judges passwords."""

    heading: ClassVar[str] = "Keystone"

    keystone_url: str = setting(
        TEXT,
        default="",
        meaning="https URL of an OpenStack Keystone (v3) that judges passwords.",
        metavar="URL",
        former_name="experimental-keystone-url",
        parse=_parse_url,
    )
    keystone_ca_file: str = file_setting(
        "CAs to verify Keystone with; read again when it changes.",
        default_note="the machine's",
        former_name="experimental-keystone-ca-file",
    )
    keystone_user_domain: str = setting(
        TEXT,
        default="Default",
        meaning="Domain of users who name none.",
        metavar="DOMAIN",
    )

    def __post_init__(self) -> None:
        """Raise ConfigError for settings without a URL, and for a domain that no user can have."""
        if not self.keystone_url:
            if self.keystone_ca_file:
                raise ConfigError("keystone-url: it is needed with keystone-ca-file")
            return
        domain = self.keystone_user_domain
        if not domain:
            raise ConfigError("keystone-user-domain: give the name of a domain, such as Default")
        if "@" in domain:
            raise ConfigError(f'keystone-user-domain: "{domain}" holds an @, behind which users name their domain')
