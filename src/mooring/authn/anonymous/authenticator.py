"""Requests without a credential.

Rules kept here (docs/protocol/openid-connect.md#anonymous-access, docs/protocol/authentication.md#anonymous-requests): the user
is `system:anonymous` in group `system:unauthenticated`. The chain calls this authenticator only without a rejection, so that a
bad credential never becomes anonymous. Where the configuration names paths, a request is anonymous only for exactly one of them,
without its query.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from mooring.api.view import Views
from mooring.authn.anonymous.reasons import PATH_NOT_ANONYMOUS
from mooring.authn.anonymousaccess import EVERYWHERE, AnonymousAccess
from mooring.authn.authenticator import NOTHING
from mooring.authn.credentials import Credentials
from mooring.authn.verdict import Accepted, NotMine, Verdict
from mooring.identity import ANONYMOUS_USER

_VERDICT = Accepted(ANONYMOUS_USER)
_ELSEWHERE = NotMine(PATH_NOT_ANONYMOUS)


class Anonymous:
    """Accepts requests without a credential."""

    name = "anonymous"
    judges = NOTHING

    def __init__(self, access: AnonymousAccess = EVERYWHERE) -> None:
        self._paths = access.paths

    def authenticate(self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]) -> Verdict:
        return _VERDICT if not self._paths or credentials.path in self._paths else _ELSEWHERE
