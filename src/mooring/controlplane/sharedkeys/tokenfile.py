"""The tokens of one server, and their files in the data directory, where users and scripts of k3s look for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from mooring.client.files import make_directory, read_limited, sync_directory, write_atomic
from mooring.clock import Clock
from mooring.controlplane.configuration import ServerConfig
from mooring.controlplane.datadirectory import warn_if_exposed
from mooring.controlplane.keystore import exclusive
from mooring.errors import ConfigError, MooringError
from mooring.pki.pem import RootCa
from mooring.secret import Secret
from mooring.trust.k3s import token as k3s
from mooring.trust.k3s.acceptedtokens import FormerToken, decode_former, digest, encode_former, parse_agent_token
from mooring.trust.k3s.cahash import ca_hash
from mooring.trust.k3s.settings import K3sSettings
from mooring.trust.sharedkeys.envelope import TokenTerm
from mooring.trust.sharedkeys.servertoken import MAX_BYTES, SharedKeysSettings, decode_agent_tokens, parse_token
from mooring.trust.sharedkeys.servertoken import NAME as AGENT_TOKENS

# The tokens of one server: the server token as it was given, else as it stands in `<data-dir>/server/token`; the agent token.
#
#     server/token                 the present one
#     server/next-token            the one that a rotation is about to put in its place
#     server/agent-token           the agent token, or a link to `token`
#     server/former-tokens.json    digests of former ones, with the end of each (mooring.trust.k3s.acceptedtokens)
#
# Rules kept here:
# * The first server of a cluster makes a token. It is durable before keys are sealed with it.
# * A token that opened the keys is kept, 0600, so that later starts need no flag.
# * Former tokens are written before the present one: a process that is killed in between accepts more, never less.
# * A server that finds the row sealed for tokens that it does not know ends its own token there.
# * No error and no log line repeats it.

log = logging.getLogger("mooring.controlplane")

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


# Files of the join tokens in the data directory, where users and scripts of k3s look for them.
#
#     server/token        K10<hash of the CA>::server:<server token>
#     server/node-token   a link to it
#     server/agent-token  K10<hash of the CA>::node:<agent token>; without an agent token a link to `token`
#
# Rules kept here (docs/protocol/k3s.md#files-of-a-server):
# * Files are 0600 and replaced at once, and so are links. Each state in between can be used.
# * They are written at each start, when the bundle at `/cacerts` changes, and when another part of the server has replaced the
#   token. Several workers may do the same work: it is done under the lock of the data directory, and again changes nothing.
# * A token that has a hash already stays as it is until this process sees another bundle, so that a worker that has not seen a
#   rollover does not undo the work of one that has.
# * An agent token that was rotated once is that of the shared keys. One that a setting gives is then not used, and the log says
#   so.

LOOK_SECONDS = 1.0
"""Between two looks, which cost one stat of each file."""
NODE_FILE = "node-token"


class JoinTokenFiles:
    """The token files of one data directory."""

    def __init__(self, config: ServerConfig) -> None:
        self._root = Path(config.data_dir)
        self._settings = config[K3sSettings]
        self._least = config[SharedKeysSettings].least_token_length
        self._rotated = self._root / "pki" / AGENT_TOKENS
        self._token = ServerTokenFile(config)
        self._folder = self._token.path.parent

    def write(self, bundle_pem: bytes, *, force: bool = True) -> None:
        """Write the files for the CA bundle that the server serves; without `force` keep a hash that a file has.

        Raises ConfigError.
        """
        digest = ca_hash(bundle_pem)
        with exclusive(self._root):
            make_directory(self._folder)
            if (password := self._token.kept()) is not None:
                self._write(self._token.path, digest, k3s.SERVER, password, force)
            self._link(NODE_FILE)
            if (agent := self.agent_token()) is not None:
                self._write(self._folder / AGENT_FILE, digest, k3s.NODE, agent, force)
            else:
                self._link(AGENT_FILE)

    async def run(self, root_ca: RootCa, clock: Clock) -> None:
        """Keep the files right until cancelled. They were written at the start."""
        bundle, seen = root_ca.pem, self._states()
        while True:
            await clock.sleep(LOOK_SECONDS)
            present = root_ca.pem, self._states()
            if present == (bundle, seen):
                continue
            try:
                await asyncio.to_thread(self.write, present[0], force=present[0] != bundle)
            except (MooringError, OSError) as error:
                log.error("the token files in %s could not be written: %s", self._folder, error)
            bundle, seen = present[0], self._states()

    def agent_token(self) -> Secret | None:
        """Return the agent token in force; None without one. Raises ConfigError."""
        given = self._given_agent_token()
        if not self._rotated.exists():
            return given
        try:
            present = decode_agent_tokens(read_limited(self._rotated, MAX_BYTES)).token
        except ConfigError as error:
            raise ConfigError(f"{self._rotated}: {error}") from None
        if given not in (None, present):
            log.warning(
                "the agent token of this cluster was rotated, and the one of --agent-token or --agent-token-file is not the "
                "present one: it is not used; leave the flag out. %s has the present one; mooring token rotate --agent changes it",
                self._folder / AGENT_FILE,
            )
        return present

    def _given_agent_token(self) -> Secret | None:
        if file := self._settings.agent_token_file:
            return parse_agent_token(read_limited(Path(file), MAX_FILE), f"agent-token-file: {file}", self._least)
        return self._settings.agent_token

    def _write(self, path: Path, digest: str, user: str, password: Secret, force: bool) -> None:
        if not force and not path.is_symlink() and path.exists() and _names(path, user, password):
            return
        text = k3s.format_token(digest, k3s.password_credential(user, password)).reveal() + b"\n"
        if path.is_symlink() or not path.exists() or read_limited(path, MAX_FILE) != text:
            write_atomic(path, text)

    def _link(self, name: str) -> None:
        """Make `name` a link to the token, if it is not."""
        link, target = self._folder / name, self._token.path.name
        if link.is_symlink() and str(link.readlink()) == target:
            return
        temporary = link.with_name(f".{name}.link")
        # One of a process that was killed: the lock is held.
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.replace(link)
        sync_directory(self._folder)

    def _states(self) -> tuple[tuple[int, int, int] | None, ...]:
        followed = [self._token.path, self._folder / NODE_FILE, self._folder / AGENT_FILE, self._rotated]
        if file := self._settings.agent_token_file:
            followed.append(Path(file))
        return tuple(map(_state, followed))


def _names(path: Path, user: str, password: Secret) -> bool:
    """Return True when a file holds this token with the hash of a CA."""
    try:
        token = k3s.parse_token(read_limited(path, MAX_FILE).strip())
    except ConfigError:
        return False
    return k3s.is_digest(token.ca_hash) and token.username == user and token.password == password


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
