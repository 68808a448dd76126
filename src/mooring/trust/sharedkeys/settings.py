"""Settings of a cluster with several servers: the token that opens the keys which they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.settings.declaration import BOOLEAN, TEXT, Settings, file_setting, setting
from mooring.trust.httpsurl import https_url_problem
from mooring.trust.sharedkeys.servertoken import ANY_LENGTH, MIN_SECRET, check_length, parse_token

STORE, FILES = "store", "files"
"""Places of the shared keys: sealed in the store, or in files that an operator copies."""


def _place(text: str, key: str) -> str:
    if text not in (STORE, FILES):
        raise ConfigError(f"{key}: give {STORE} or {FILES}")
    return text


def _server(text: str, key: str) -> str:
    if text and (problem := https_url_problem(text)):
        raise ConfigError(f"{key}: {problem}; give https://<address>:<port> of a server of the cluster")
    return text.rstrip("/")


def _token(text: str, key: str) -> Secret | None:
    try:
        return parse_token(text.encode("utf-8", "surrogateescape"), ANY_LENGTH) if text else None
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedKeysSettings(Settings):
    """The place of the keys that servers share, and the server token."""

    heading: ClassVar[str] = "Several servers"

    server: str = setting(
        TEXT,
        default="",
        meaning="Server of the cluster to join (--k3s-supervisor). It names the store, which then needs no flag; credentials do.",
        default_note="this server makes a cluster, or finds it in its store",
        metavar="URL",
        parse=_server,
        everyday=True,
    )
    shared_keys: str = setting(
        TEXT,
        default=STORE,
        meaning="Where the servers of one cluster get their common keys: store (sealed in it) or files (copied by you).",
        metavar="store|files",
        parse=_place,
    )
    server_token_file: str = file_setting(
        "File with the token that opens the keys of the cluster in the store; the first server makes one.",
        default_note="server/token in the data directory",
    )
    server_token: Secret | None = setting(
        TEXT,
        default="",
        meaning="The token itself. Other users of the machine see a command line: prefer the file or the environment.",
        metavar="TOKEN",
        secret=True,
        parse=_token,
        everyday=True,
    )

    allow_short_server_token: bool = setting(
        BOOLEAN,
        default=False,
        meaning="Accept a server token and an agent token of fewer than 16 characters, as k3s does, with a warning. A guess of "
        "the server token opens the keys of the cluster: replace it by `mooring token rotate`.",
    )

    @property
    def least_token_length(self) -> int:
        """Characters that a server token or an agent token must have."""
        return ANY_LENGTH if self.allow_short_server_token else MIN_SECRET

    def __post_init__(self) -> None:
        """Raise ConfigError for two tokens, and for one that is too short."""
        if self.server_token is not None:
            check_length(self.server_token, "server-token: a server token", self.least_token_length)
        if self.server_token_file and self.server_token:
            raise ConfigError("server-token-file: give the file or server-token, not both")
