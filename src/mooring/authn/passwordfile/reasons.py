"""Reason codes."""

from __future__ import annotations

from mooring.authn.reasons import Code

UNKNOWN_USER = Code("unknown-user")
WRONG_PASSWORD = Code("wrong-password")
