"""The tokens of one server: the server token as it was given, else as it stands in `<data-dir>/server/token`; the agent token.

    server/token                 the present one
    server/next-token            the one that a rotation is about to put in its place
    server/agent-token           the agent token, or a link to `token`
    server/former-tokens.json    digests of former ones, with the end of each (mooring.trust.k3s.acceptedtokens)

Rules kept here:
* The first server of a cluster makes a token. It is durable before keys are sealed with it.
* A token that opened the keys is kept, 0600, so that later starts need no flag.
* Former tokens are written before the present one: a process that is killed in between accepts more, never less.
* A server that finds the row sealed for tokens that it does not know ends its own token there.
* No error and no log line repeats it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from mooring.client.files import make_directory, read_limited, write_atomic
from mooring.errors import ConfigError
from mooring.plane.configuration import ServerConfig
from mooring.plane.files.exposed import warn_if_exposed
from mooring.secret import Secret
from mooring.trust.k3s import token as k3s
from mooring.trust.k3s.acceptedtokens import FormerToken, decode_former, digest, encode_former, parse_agent_token
from mooring.trust.sharedkeys.envelope import TokenTerm
from mooring.trust.sharedkeys.servertoken import parse_token
from mooring.trust.sharedkeys.settings import SharedKeysSettings

log = logging.getLogger("mooring.plane")

AGENT_FILE = "agent-token"
MAX_FILE = 4096
"""Bytes: the longest token, and whitespace around it."""


class ServerTokenFile:
    """The server token of one data directory."""

    def __init__(self, config: ServerConfig) -> None:
        self.path = Path(config.data_dir) / "server" / "token"
        self._next_path = self.path.with_name("next-token")
        self.former_path = self.path.with_name("former-tokens.json")
        self._settings = config[SharedKeysSettings]

    @property
    def is_given(self) -> bool:
        """True when a setting gives the token."""
        return self._settings.server_token is not None or bool(self._settings.server_token_file)

    def given(self) -> Secret | None:
        """Return the token that a setting gives; None when none does. Raises ConfigError."""
        if self._settings.server_token is not None:
            return self._settings.server_token
        if file := self._settings.server_token_file:
            warn_if_exposed(Path(file))
            return self._parse(f"server-token-file: {file}", Path(file))
        return None

    def kept(self) -> Secret | None:
        """Return the token in the data directory; None when there is none. Raises ConfigError."""
        if not self.path.exists():
            return None
        warn_if_exposed(self.path)
        return self._parse(str(self.path), self.path)

    def _parse(self, place: str, path: Path) -> Secret:
        return _parsed(place, read_limited(path, MAX_FILE), self._settings.least_token_length)

    def keep(self, token: Secret) -> None:
        """Write the token into the data directory, unless it is there. The hash of a CA stays in front of it."""
        if not self.path.exists() or self.kept() != token:
            make_directory(self.path.parent)
            write_atomic(self.path, self._with_hash(token).reveal() + b"\n")

    def _with_hash(self, token: Secret) -> Secret:
        """Return the token with the hash that the one in the file has."""
        try:
            former = k3s.parse_token(read_limited(self.path, MAX_FILE).strip())
        except ConfigError:
            return token
        if not k3s.is_digest(former.ca_hash):
            return token
        return k3s.format_token(former.ca_hash, k3s.password_credential(k3s.SERVER, token))

    def following(self) -> Secret | None:
        """Return the token of a rotation that was not finished; None when there is none. Raises ConfigError."""
        if not self._next_path.exists():
            return None
        return self._parse(str(self._next_path), self._next_path)

    def follow_with(self, token: Secret | None) -> None:
        """Write the token of a rotation that is about to change the row, or remove it."""
        if token is not None and token != self.kept():
            make_directory(self.path.parent)
            write_atomic(self._next_path, token.reveal() + b"\n")
        else:
            self._next_path.unlink(missing_ok=True)

    def accept(self, terms: Iterable[TokenTerm], removed: Iterable[TokenTerm], now: datetime) -> None:
        """Write the tokens of a row: the first is the present one. Tokens of `removed` that are not among them end now.

        Writes nothing that is there already. Raises ConfigError.
        """
        present, *former = terms
        ends = {one.sha256: one.until for one in self._former()}
        for one in removed:
            ends[digest(one.token)] = _end(one, now)
        for one in former:
            ends[digest(one.token)] = _end(one, now)
        ends.pop(digest(present.token), None)
        self._write_former(ends)
        self.keep(present.token)
        self.follow_with(None)

    def end(self, token: Secret, now: datetime) -> None:
        """Record that the present token is accepted no longer. Raises ConfigError."""
        ends = {one.sha256: one.until for one in self._former()}
        if digest(token) not in ends:
            self._write_former({**ends, digest(token): now})

    def _former(self) -> tuple[FormerToken, ...]:
        if not self.former_path.exists():
            return ()
        try:
            return decode_former(read_limited(self.former_path, MAX_FILE))
        except ConfigError as error:
            log.warning("%s: %s; it is rewritten", self.former_path, error)
            return ()

    def _write_former(self, ends: dict[bytes, datetime]) -> None:
        data = encode_former([FormerToken(sha256, until) for sha256, until in ends.items()])
        if not (ends or self.former_path.exists()):
            return
        if not self.former_path.exists() or read_limited(self.former_path, MAX_FILE) != data:
            make_directory(self.path.parent)
            write_atomic(self.former_path, data)

    def forget(self) -> None:
        """Remove a token that was made in vain."""
        self.path.unlink(missing_ok=True)


class AgentTokenFile:
    """The agent token of one data directory, as the last start or the last rotation wrote it."""

    def __init__(self, config: ServerConfig) -> None:
        self.path = Path(config.data_dir) / "server" / AGENT_FILE

    def kept(self) -> Secret | None:
        """Return the agent token; None when agents join with the server token. Raises ConfigError, also without the file."""
        if self.path.is_symlink():
            return None
        if not self.path.exists():
            raise ConfigError(
                f"{self.path} is missing: start the server of this data directory with --k3s-supervisor first"
            )
        return parse_agent_token(read_limited(self.path, MAX_FILE), str(self.path), least=1)

    def keep(self, token: Secret) -> None:
        """Write the agent token with the hash that the server token has; a server that runs, or starts, writes the present hash."""
        try:
            digest = k3s.parse_token(read_limited(self.path.with_name("token"), MAX_FILE).strip()).ca_hash
        except ConfigError:
            digest = ""
        text = k3s.format_token(digest, k3s.password_credential(k3s.NODE, token)) if k3s.is_digest(digest) else token
        write_atomic(self.path, text.reveal() + b"\n")


def _end(term: TokenTerm, now: datetime) -> datetime:
    """Return the end of a former token; now for one that has none in the row."""
    return datetime.fromtimestamp(term.until, UTC) if term.until else now


def _parsed(place: str, data: bytes, least: int) -> Secret:
    try:
        return parse_token(data, least)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
