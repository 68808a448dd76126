"""The protocol of an authenticator: it judges one kind of credential.

Rules kept here: an authenticator is synchronous, reads views and never waits. It answers with one of three verdicts (law 3), or
with a deferred verdict that describes the missing work (law 2, `mooring.authn.verdict.Deferred`).
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
    """An authenticator that a row of `mooring.authn.table.PROVIDERS` built."""

    @property
    def name(self) -> str:
        """Name in the operator's records, e.g. `client-certificate`."""

    @property
    def judges(self) -> Literal["connection", "secret", "nothing"]:
        """`connection`: the peer's certificate, with the headers of a proxy. `secret`: a bearer token, a password or another
        credential in a header.

        `nothing` makes it a fallback: it is called only when every other authenticator left the request alone and no secret was
        offered.
        """

    def authenticate(
        self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]
    ) -> FirstVerdict:
        """One verdict, at once. Never raises for a bad credential."""
