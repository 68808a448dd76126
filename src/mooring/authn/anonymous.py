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
from mooring.errors import ConfigError
from mooring.identity import ANONYMOUS_USER
from mooring.settings.addresses import Network, is_in, parse_networks
from mooring.settings.declaration import COMMA_SEPARATED, OPTIONAL_BOOLEAN, Settings, setting

# Access without a credential, as a flag or the AuthenticationConfiguration sets it.


@dataclass(frozen=True, slots=True)
class AnonymousAccess:
    """Requests without a credential are accepted when `enabled`: for `paths` and from `networks`, each where any are named."""

    enabled: bool
    paths: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()


EVERYWHERE = AnonymousAccess(True)


_EVERY_NETWORK = ("0.0.0.0/0", "::/0")


def _allowed_networks(texts: tuple[str, ...], key: str) -> tuple[Network, ...]:
    """Return the networks that are named, none for every network. An empty list is an error: it could mean either."""
    if not texts:
        raise ConfigError(
            f"{key}: it names no network; leave it out for every network, or turn anonymous-auth off for none"
        )
    return () if texts == _EVERY_NETWORK else parse_networks(texts, key)


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
    anonymous_allow_cidr: tuple[Network, ...] = setting(
        COMMA_SEPARATED,
        default=_EVERY_NETWORK,
        meaning="Networks from which requests without credentials are let through; repeatable, or with commas.",
        metavar="CIDR,...",
        default_note="every network",
        parse=_allowed_networks,
    )

    def __post_init__(self) -> None:
        """Raise ConfigError for networks without effect."""
        if self.anonymous_allow_cidr and not self.enabled:
            raise ConfigError("anonymous-allow-cidr: no network has anonymous requests while anonymous-auth is false")

    @property
    def enabled(self) -> bool:
        """Anonymous requests are let through."""
        return self.anonymous_auth is not False


PATH_NOT_ANONYMOUS = Code("path-not-anonymous")
NETWORK_NOT_ANONYMOUS = Code("network-not-anonymous")


# Requests without a credential.
#
# Rules kept here (docs/protocol/openid-connect.md#anonymous-access, docs/protocol/authentication.md#anonymous-requests): the user
# is `system:anonymous` in group `system:unauthenticated`. The chain calls this authenticator only without a rejection, so that a
# bad credential never becomes anonymous. Where the configuration names paths, a request is anonymous only for exactly one of
# them, without its query. Where networks are named, it must come from one of them; the address is that of the connection.

_VERDICT = Accepted(ANONYMOUS_USER)
_ELSEWHERE = NotMine(PATH_NOT_ANONYMOUS)
_OUTSIDE = NotMine(NETWORK_NOT_ANONYMOUS)


class Anonymous:
    """Accepts requests without a credential."""

    name = "anonymous"
    judges = NOTHING

    def __init__(self, access: AnonymousAccess = EVERYWHERE) -> None:
        self._paths, self._networks = access.paths, access.networks

    def authenticate(self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]) -> Verdict:
        if self._paths and credentials.path not in self._paths:
            return _ELSEWHERE
        return _VERDICT if is_in(credentials.source, self._networks) else _OUTSIDE
