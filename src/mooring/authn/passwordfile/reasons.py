"""Reason codes of the password file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mooring.authn.reasons import Reason

UNKNOWN_USER = "unknown-user"
WRONG_PASSWORD = "wrong-password"  # noqa: S105 - a reason code, not a password

REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        UNKNOWN_USER: Reason(
            "The password file has no such user.",
            "Add the user to --basic-auth-file; it is read again when it changes.",
        ),
        WRONG_PASSWORD: Reason(
            "The user is in the password file, and the password differs.",
            "Try it again, or set another one in --basic-auth-file; it is read again when it changes.",
        ),
    }
)
