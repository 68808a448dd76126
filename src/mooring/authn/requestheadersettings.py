"""Settings of an authenticating proxy.

Rules kept here: the flags belong to `--requestheader-client-ca-file`, and a proxy needs at least one header for user names. Header
names keep the case that the operator gave.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from mooring.errors import ConfigError
from mooring.settings.declaration import COMMA_SEPARATED, Settings, file_setting, setting

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
"""RFC 9110 5.6.2: a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderNames:
    """Headers in which a proxy names the user, in lower case."""

    username: tuple[str, ...]
    uid: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    extra_prefixes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHeaderSettings(Settings):
    """Authenticating proxy: the CA of its certificate, and the headers in which it names the user."""

    heading: ClassVar[str] = "Authenticating proxy"

    requestheader_client_ca_file: str = file_setting("CAs of the certificate an authenticating proxy shows.")
    requestheader_allowed_names: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="Common names that may; none: every certificate of these CAs.",
        metavar="NAME,...",
    )
    requestheader_username_headers: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="Headers that name the user; the first that is not empty counts.",
        metavar="NAME,...",
    )
    requestheader_uid_headers: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="Headers that hold the user's uid.",
        metavar="NAME,...",
    )
    requestheader_group_headers: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="Headers that hold groups; all count.",
        metavar="NAME,...",
    )
    requestheader_extra_headers_prefix: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="What headers begin with that hold extra attributes.",
        metavar="NAME,...",
    )

    def __post_init__(self) -> None:
        """Raise ConfigError for settings without a CA, and for names that no such header can have."""
        names = {
            "requestheader-username-headers": self.requestheader_username_headers,
            "requestheader-uid-headers": self.requestheader_uid_headers,
            "requestheader-group-headers": self.requestheader_group_headers,
            "requestheader-extra-headers-prefix": self.requestheader_extra_headers_prefix,
        }
        if not self.requestheader_client_ca_file:
            for key, given in {"requestheader-allowed-names": self.requestheader_allowed_names, **names}.items():
                if given:
                    raise ConfigError(
                        f"requestheader-client-ca-file: it is needed with {key}; who may speak for others is told by it"
                    )
            return
        if not self.requestheader_username_headers:
            raise ConfigError(
                "requestheader-username-headers: it is needed with requestheader-client-ca-file, for example X-Remote-User"
            )
        for key, given in names.items():
            _check_headers(key, given)

    @property
    def names(self) -> HeaderNames | None:
        """Headers in which the proxy names the user; None without a proxy."""
        if not self.requestheader_client_ca_file:
            return None
        return HeaderNames(
            username=_lower(self.requestheader_username_headers),
            uid=_lower(self.requestheader_uid_headers),
            groups=_lower(self.requestheader_group_headers),
            extra_prefixes=_lower(self.requestheader_extra_headers_prefix),
        )


def _check_headers(key: str, names: tuple[str, ...]) -> None:
    for name in names:
        if not _HEADER.fullmatch(name):
            raise ConfigError(f'{key}: "{name}" is not the name of a header')
        if name.lower() == "authorization":
            raise ConfigError(f'{key}: "{name}" carries credentials; choose another header')


def _lower(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return header names as requests carry them, each once."""
    return tuple(dict.fromkeys(name.lower() for name in names))
