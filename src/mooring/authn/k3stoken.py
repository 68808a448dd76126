"""HTTP Basic with the server token or the agent token.

Rules kept here (docs/protocol/k3s.md#authentication-of-the-supervisor, docs/adr/0051-the-supervisor-api.md):
* The server puts this authenticator before requests to the supervisor API only. On every other path no request can reach it, so a
  token opens nothing of the Kubernetes API.
* Users `server` and `node` are judged (`mooring.trust.k3s.acceptedtokens`). Any other user is not mine.
* A wrong token is rejected, and not sent to other services.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from mooring.api.view import Views
from mooring.authn.credentials import SECRET, Credentials
from mooring.authn.verdict import Accepted, FirstVerdict, NotMine, Rejected
from mooring.trust.k3s.acceptedtokens import ACCEPTED, UNKNOWN, AcceptedTokens
from mooring.trust.k3s.identity import AGENT_IDENTITY, AUTHENTICATOR, SERVER_IDENTITY, SERVER_USER

_NOT_MINE = NotMine()
_SERVER, _AGENT = Accepted(SERVER_IDENTITY), Accepted(AGENT_IDENTITY)


class K3sTokenAuthenticator:
    """Judges the two tokens. `accepted` may be replaced at any time, between two requests. `read` returns those of the files."""

    name = AUTHENTICATOR
    judges = SECRET

    def __init__(self, accepted: AcceptedTokens, read: Callable[[], AcceptedTokens] | None = None) -> None:
        self.accepted = accepted
        self._read = read

    def read_again(self) -> None:
        """Accept what the files say now: a rotation may have changed them since they were looked at. Raises ConfigError."""
        if self._read is not None:
            self.accepted = self._read()

    def authenticate(
        self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]
    ) -> FirstVerdict:
        basic = credentials.basic
        if basic is None:
            return _NOT_MINE
        judgement = self.accepted.judge(basic.user, basic.password, now)
        if judgement == UNKNOWN:
            return _NOT_MINE
        if judgement != ACCEPTED:
            return Rejected(judgement, f"user {basic.user}")
        return _SERVER if basic.user == SERVER_USER else _AGENT
