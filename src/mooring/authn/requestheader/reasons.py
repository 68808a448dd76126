"""Reason codes."""

from __future__ import annotations

from mooring.authn.reasons import Code

NAME_NOT_ALLOWED = Code("proxy-name-not-allowed")
NO_USER_HEADER = Code("no-user-header")
