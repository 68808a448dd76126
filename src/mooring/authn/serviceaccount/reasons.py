"""Reason codes."""

from __future__ import annotations

from mooring.authn.reasons import Code

GONE = Code("bound-object-gone")
REPLACED = Code("bound-object-replaced")
DELETED = Code("bound-object-deleted")
UNKNOWN_KIND = Code("bound-object-unknown-kind")
INVALIDATED = Code("invalidated")
