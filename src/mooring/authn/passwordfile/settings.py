"""Settings of the password file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooring.settings.declaration import Settings, file_setting


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordFileSettings(Settings):
    """Passwords from a file."""

    heading: ClassVar[str] = "Password file"

    basic_auth_file: str = file_setting(
        'CSV of passwords: password,user,uid,"group,..."; a password may be hashed (mooring auth hash-password). '
        "Read again when it changes."
    )
