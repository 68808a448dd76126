"""Files of the join tokens in the data directory, where users and scripts of k3s look for them.

    server/token        K10<hash of the CA>::server:<server token>
    server/node-token   a link to it
    server/agent-token  K10<hash of the CA>::node:<agent token>; without an agent token a link to `token`

Rules kept here (docs/protocol/k3s.md#files-of-a-server):
* Files are 0600 and replaced at once, and so are links. Each state in between can be used.
* They are written at each start, when the bundle at `/cacerts` changes, and when another part of the server has replaced the token.
  Several workers may do the same work: it is done under the lock of the data directory, and again changes nothing.
* A token that has a hash already stays as it is until this process sees another bundle, so that a worker that has not seen a
  rollover does not undo the work of one that has.
* An agent token that was rotated once is that of the shared keys. One that a setting gives is then not used, and the log says so.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from mooring.client.files import make_directory, read_limited, sync_directory, write_atomic
from mooring.clock import Clock
from mooring.errors import ConfigError, MooringError
from mooring.pki.pem import RootCa
from mooring.plane.configuration import ServerConfig
from mooring.plane.keys.keystore import exclusive
from mooring.plane.sharedkeys.tokenfile import AGENT_FILE, MAX_FILE, ServerTokenFile
from mooring.secret import Secret
from mooring.trust.k3s import token as k3s
from mooring.trust.k3s.acceptedtokens import parse_agent_token
from mooring.trust.k3s.cahash import ca_hash
from mooring.trust.k3s.settings import K3sSettings
from mooring.trust.sharedkeys.servertoken import MAX_BYTES, decode_agent_tokens
from mooring.trust.sharedkeys.servertoken import NAME as AGENT_TOKENS
from mooring.trust.sharedkeys.settings import SharedKeysSettings

LOOK_SECONDS = 1.0
"""Between two looks, which cost one stat of each file."""
NODE_FILE = "node-token"

log = logging.getLogger("mooring.plane")


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
        temporary.unlink(missing_ok=True)  # of a process that was killed: the lock is held
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
