"""What an authenticator is: one way of telling who sent a request.

Rules kept here: an authenticator is synchronous, reads views, never waits, and answers with one of three verdicts (law 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from mooring.authn.credentials import Credentials
from mooring.authn.verdict import Verdict
from mooring.kinds.view import Views


class Authenticator(Protocol):
    """One row of `mooring.authn.table.AUTHENTICATORS`, built."""

    @property
    def name(self) -> str:
        """What operators call it, e.g. `client-certificate`."""

    @property
    def fallback(self) -> bool:
        """Asked only when nobody accepted, nobody rejected and no bearer token was left unclaimed."""

    def authenticate(self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]) -> Verdict:
        """One verdict. Never raises for a bad credential."""
