"""Anonymous requests: which paths they may ask for, and the user that they get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from mooring.api.view import Views
from mooring.authn.credentials import NOTHING, Credentials
from mooring.authn.reasons import Code
from mooring.authn.verdict import Accepted, NotMine, Verdict
from mooring.identity import ANONYMOUS_USER
from mooring.settings.declaration import OPTIONAL_BOOLEAN, Settings, setting

# Access without a credential, as a flag or the AuthenticationConfiguration sets it.


@dataclass(frozen=True, slots=True)
class AnonymousAccess:
    """Requests without a credential are accepted when `enabled`: for `paths`, or for every path when none is named."""

    enabled: bool
    paths: frozenset[str] = frozenset()


EVERYWHERE = AnonymousAccess(True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnonymousSettings(Settings):
    """Requests without credentials."""

    heading: ClassVar[str] = "Anonymous requests"

    anonymous_auth: bool | None = setting(
        OPTIONAL_BOOLEAN,
        default=None,
        meaning="Whether requests without credentials are let through as system:anonymous.",
        default_note="true",
    )
    """None when it was not given: then the file of `--authentication-config` may decide."""

    @property
    def enabled(self) -> bool:
        """Anonymous requests are let through."""
        return self.anonymous_auth is not False


PATH_NOT_ANONYMOUS = Code("path-not-anonymous")


# Requests without a credential.
#
# Rules kept here (docs/protocol/openid-connect.md#anonymous-access, docs/protocol/authentication.md#anonymous-requests): the user
# is `system:anonymous` in group `system:unauthenticated`. The chain calls this authenticator only without a rejection, so that a
# bad credential never becomes anonymous. Where the configuration names paths, a request is anonymous only for exactly one of
# them, without its query.

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
