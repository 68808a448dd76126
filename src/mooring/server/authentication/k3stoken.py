"""Runs the authenticator of the server token and the agent token, whose files are followed while the server runs.

Rules kept here:
* Each worker follows the files of the data directory by itself. A rotated token is in force in all of them within two looks.
* A start makes the token before it builds authenticators. Where there is none, as in a dry run, none is accepted.
* A store in memory has no such files: there the settings give the token.
* Agent tokens that were rotated once count, and no longer the settings (`mooring.trust.sharedkeys.servertoken`). When their file
  disappears under a running server, what was read last stays.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mooring.authn.chain import BASIC
from mooring.authn.host import Configured, Host, Running
from mooring.authn.k3stoken import K3sTokenAuthenticator
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.settings.storage import StorageSettings
from mooring.trust.k3s.acceptedtokens import AcceptedTokens, check_agent_token, decode_former, digest, parse_agent_token
from mooring.trust.k3s.settings import K3sSettings
from mooring.trust.sharedkeys.servertoken import NAME as AGENT_TOKENS
from mooring.trust.sharedkeys.servertoken import AgentTokens, SharedKeysSettings, decode_agent_tokens, parse_token

KEY = "k3s-supervisor"
FOLDER, TOKEN, FORMER, SHARED = "server", "token", "former-tokens.json", "pki"


def build(config: Configured, host: Host) -> Running | None:
    """Return the authenticator; None without the supervisor API. Raises ConfigError."""
    if not config[K3sSettings].k3s_supervisor:
        return None
    sources = _Sources(config, host)
    authenticator = K3sTokenAuthenticator(sources.read(), sources.read)

    def prepare() -> Callable[[], None]:
        accepted = sources.read()

        def use() -> None:
            authenticator.accepted = accepted

        return use

    host.files.follow_files(sources.paths, prepare)
    return Running(authenticators=(authenticator,), turned_on_by=KEY, schemes={BASIC: "Basic"}, supervisor=True)


class _Sources:
    """Files and settings that hold the tokens."""

    def __init__(self, config: Configured, host: Host) -> None:
        self._settings, self._shared = config[K3sSettings], config[SharedKeysSettings]
        self._host = host
        storage = config[StorageSettings]
        folder = None if storage.in_memory else Path(storage.data_dir) / FOLDER
        given = self._shared.server_token_file
        self._server = Path(given) if folder is None and given else folder and folder / TOKEN
        self._former = folder and folder / FORMER
        self._rotated = None if storage.in_memory else Path(storage.data_dir) / SHARED / AGENT_TOKENS
        self._was_rotated = False
        self._agent = Path(self._settings.agent_token_file) if self._settings.agent_token_file else None
        for path in (self._server, self._agent):
            if path is not None and _exists(path):
                host.files.warn_if_exposed(str(path))

    @property
    def paths(self) -> list[str]:
        return [str(path) for path in (self._server, self._former, self._rotated, self._agent) if path is not None]

    def read(self) -> AcceptedTokens:
        """Return what is accepted now. Raises ConfigError."""
        former, server, agents = self._former, self._server_token(), self._agent_tokens()
        return AcceptedTokens(
            digest(server) if server is not None else None,
            self._agent_digest() if agents is None else digest(agents.token),
            decode_former(self._host.files.read(str(former))) if former is not None and _exists(former) else (),
            () if agents is None else agents.former,
        )

    def _agent_tokens(self) -> AgentTokens | None:
        """Return the agent tokens that the servers share; None before their first rotation. Raises ConfigError."""
        if self._rotated is None or not (self._was_rotated or _exists(self._rotated)):
            return None
        try:
            found = decode_agent_tokens(self._host.files.read(str(self._rotated)))
        except ConfigError as error:
            raise ConfigError(
                f"{self._rotated}: {error}; delete it and start this server again, which takes it from the store"
            ) from None
        self._was_rotated = True
        return found

    def _server_token(self) -> Secret | None:
        if self._server is not None:
            if self._former is not None and not _exists(self._server):
                return None
            try:
                return parse_token(self._host.files.read(str(self._server)), self._shared.least_token_length)
            except ConfigError as error:
                raise ConfigError(f"{self._server}: {error}") from None
        if self._shared.server_token is None:
            raise ConfigError(f"{KEY}: a store in memory keeps no server token; give --server-token-file")
        return self._shared.server_token

    def _agent_digest(self) -> bytes | None:
        if self._agent is not None:
            return digest(
                parse_agent_token(
                    self._host.files.read(str(self._agent)),
                    f"agent-token-file: {self._agent}",
                    self._shared.least_token_length,
                )
            )
        token = self._settings.agent_token
        if token is not None:
            check_agent_token(token, "agent-token", self._shared.least_token_length)
        return None if token is None else digest(token)


def _exists(path: Path) -> bool:
    """Return whether there is a file; False in the data directory of another user."""
    try:
        return path.exists()
    except OSError:
        return False
