"""What an authenticator is: one way of telling who sent a request.

Rules kept here: an authenticator is synchronous, reads views, never waits, and answers with one of three verdicts (law 3),
or says what must be found out first (law 2, `mooring.authn.verdict.Deferred`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, Protocol

from mooring.api.view import Views
from mooring.authn.credentials import Credentials
from mooring.authn.verdict import FirstVerdict

CONNECTION: Literal["connection"] = "connection"
SECRET: Literal["secret"] = "secret"  # noqa: S105 - a word for kinds of credentials, not a password
NOTHING: Literal["nothing"] = "nothing"


class Authenticator(Protocol):
    """One row of `mooring.authn.table.PROVIDERS`, built."""

    @property
    def name(self) -> str:
        """What operators call it, e.g. `client-certificate`."""

    @property
    def judges(self) -> Literal["connection", "secret", "nothing"]:
        """`connection`: the peer's certificate, with whatever headers it vouches for. `secret`: a bearer token or a password.

        `nothing` makes it a fallback: asked only when nobody accepted, nobody refused and no secret was left unclaimed.
        """

    def authenticate(
        self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]
    ) -> FirstVerdict:
        """One verdict, at once. Never raises for a bad credential."""
