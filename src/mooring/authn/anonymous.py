"""Who sent a request that offered nothing.

Rules kept here (reference/kubernetes.md 5.12): user `system:anonymous` in group `system:unauthenticated`, nothing more. The
chain asks only when nothing was refused, so a bad credential never becomes anonymous.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from mooring.authn.authenticator import NOTHING
from mooring.authn.credentials import Credentials
from mooring.authn.verdict import Accepted, Verdict
from mooring.identity import ANONYMOUS_USER
from mooring.kinds.view import Views

_VERDICT = Accepted(ANONYMOUS_USER)


class Anonymous:
    """Accepts whoever is left."""

    name = "anonymous"
    judges = NOTHING

    def authenticate(self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]) -> Verdict:
        return _VERDICT
