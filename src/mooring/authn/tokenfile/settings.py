"""Settings of the token file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooring.settings.declaration import Settings, file_setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFileSettings(Settings):
    """Bearer tokens from a file."""

    heading: ClassVar[str] = "Token file"

    token_auth_file: str = file_setting('CSV of bearer tokens: token,user,uid,"group,..."; read again when it changes.')
