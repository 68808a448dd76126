"""Settings of anonymous access."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooring.settings.declaration import Settings, setting
from mooring.settings.valuetypes import OPTIONAL_BOOLEAN


@dataclass(frozen=True, slots=True, kw_only=True)
class AnonymousSettings(Settings):
    """Requests without credentials."""

    heading: ClassVar[str] = "Anonymous requests"

    anonymous_auth: bool | None = setting(
        OPTIONAL_BOOLEAN,
        default=None,
        meaning="Whether requests without credentials are let through as system:anonymous.",
        default_note="true",
    )
    """None when it was not given: then the file of `--authentication-config` may decide."""

    @property
    def enabled(self) -> bool:
        """Anonymous requests are let through."""
        return self.anonymous_auth is not False
