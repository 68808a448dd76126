"""Audit-Id of a refused request: the command with which an administrator learns the reason that the client is not told.

Rules kept here: an id that a server may have copied from a token is not printed. The ids of API servers are UUIDs.
"""

from __future__ import annotations

import re

_PRINTED = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
"""Form of an Audit-Id that is printed: a bootstrap token has a dot."""


def explained_by(audit_id: str) -> str:
    """Return the end of an error message, which names the command; "" for a response without an Audit-Id."""
    if not _PRINTED.fullmatch(audit_id):
        return ""
    return f"; an administrator of a Mooring server learns the reason with: mooring auth explain {audit_id}"
