"""Audit-Id of a refused request: the command with which an administrator learns the reason that the client is not told.

Rules kept here: an id that a server may have copied from a token is not printed. The ids of API servers are UUIDs.
"""

from __future__ import annotations

import re

_PRINTED = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
"""Form of an Audit-Id that is printed: a bootstrap token has a dot."""


_COMMAND = "; an administrator of a Mooring server learns the reason with: mooring auth explain "
_EXPLAINED = re.compile(_COMMAND + _PRINTED.pattern, re.ASCII)


def explained_by(audit_id: str) -> str:
    """Return the end of an error message, which names the command; "" for a response without an Audit-Id."""
    return f"{_COMMAND}{audit_id}" if _PRINTED.fullmatch(audit_id) else ""


def without_audit_id(message: str) -> str:
    """Return an error message without the command, so that those of two refusals for one reason are equal."""
    return _EXPLAINED.sub("", message)
