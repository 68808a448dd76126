"""Reason codes."""

from __future__ import annotations

from mooring.authn.reasons import Code

PATH_NOT_ANONYMOUS = Code("path-not-anonymous")
