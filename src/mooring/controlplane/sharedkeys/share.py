"""Share of one server in the keys of its cluster: the row in the store, and the files in its data directory, brought to agree.

Rules kept here:
* The row decides. A change is prepared in a copy of the files, stored by compare-and-swap, and written into `pki/` afterwards. So
  no server uses a key that another one may not know, and a server that is killed in between takes the row at its next start.
* Two servers that start at once on an empty store create the row; one fails, and takes the keys of the other.
* scrypt runs in a thread, and once: the data key is kept in memory until another one seals the row.
* A store inside the data directory is claimed for its CA and holds no keys, unless a server token is there: the keys lie beside
  the store. So such a server starts without scrypt.
* Keys are made on an empty store, or where a person asks for new ones. A server that keeps its keys has them on disk before it
  claims the store, and a start that is killed in between completes it. A cluster whose keys are missing is refused
  (docs/adr/0075-keys-are-made-once.md).
* A change of the server token is one compare-and-swap. The files that the authenticator of join tokens reads follow it: former
  tokens first, then the present one, then the record. A process that is killed in between does the rest at its next start or look.
* The new token is on disk before the row changes (`next-token`): otherwise a rotation without a grace could end with a row
  that nothing opens.
* Agent tokens are one of the files (`mooring.trust.sharedkeys.servertoken`). A rotation alone changes them: what stands in `pki/`
  is stored only where the store was restored from an earlier backup.
* A former token opens the row until one of the servers has removed its wrap. The server that finds it in its data directory takes
  the present one; a server to which it is given after its end refuses it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from mooring.apimachinery.names import uuid4
from mooring.authn.serviceaccountsettings import ServiceAccountSettings
from mooring.clock import Clock, rfc3339
from mooring.controlplane.configuration import ServerConfig
from mooring.controlplane.keystore import exclusive
from mooring.controlplane.sharedkeys.files import SharedKeyFiles
from mooring.controlplane.sharedkeys.tokenfile import AgentTokenFile, ServerTokenFile
from mooring.errors import ConfigError, MooringError, StorageError
from mooring.reminders import LastingProblem
from mooring.secret import Secret
from mooring.server.endpoints.supervisor.servers import Confirm
from mooring.settings.storage import StorageSettings
from mooring.storage.contract import Entry, KeyExistsError, RevisionMismatchError, Storage
from mooring.storage.formatlevel import AGENT_TOKENS_LEVEL, level_in_force
from mooring.trust.k3s.acceptedtokens import digest
from mooring.trust.k3s.settings import K3sSettings
from mooring.trust.sharedkeys import envelope, servertoken
from mooring.trust.sharedkeys.envelope import KEY, SharedKeysRow, TokenTerm, WrongTokenError
from mooring.trust.sharedkeys.keyset import TOKEN_KEY, SharedKeySet, are_related
from mooring.trust.sharedkeys.reconciliation import (
    Action,
    Agreed,
    KeysOnDisk,
    StoredCluster,
    check_adoptable,
    check_cluster,
    check_complete,
    missing_keys,
    next_action,
)
from mooring.trust.sharedkeys.serverjoin import KnownTokenError, rotated, unexpired
from mooring.trust.sharedkeys.servertoken import (
    FILES,
    AgentRotationRefusedError,
    AgentTerm,
    AgentTokens,
    SharedKeysSettings,
    decode_agent_tokens,
    generate_token,
)

log = logging.getLogger("mooring.controlplane")

MAX_ATTEMPTS = 10
"""Lost races in a row after which a start fails. Each loser takes the keys of the winner, so that one is usual."""
FOLLOW_SECONDS = 10.0
"""Between two looks at the row, which are one read of one key. A rollover looks every second while it is under way."""

Entropy = Callable[[int], bytes]
Edit = Callable[[Path], None]
"""Changes the files below `pki/` of the directory that it is given."""
Cas = tuple[str, ...]


async def nobody_asks() -> None:
    """Confirm a rotation that no request asks for."""


async def no_cluster() -> StoredCluster | None:
    """Return that a store without a row is empty."""
    return None


def shares_keys(config: ServerConfig) -> bool:
    """Return whether a server with this configuration seals its keys in the store."""
    storage = config[StorageSettings]
    if storage.in_memory or config[SharedKeysSettings].shared_keys == FILES:
        return False
    token = ServerTokenFile(config)
    # The server token of a supervisor seals the keys, as with k3s.
    supervised = config[K3sSettings].k3s_supervisor
    return supervised or token.is_given or token.path.exists() or not storage.is_in_data_dir


@dataclass(frozen=True, slots=True)
class Rotated:
    """A rotation of a token: identifier of the new one, and the end of the former one; None without one."""

    id: str
    grace_ends: datetime | None
    made: Secret | None
    """The new token, when it was made here."""


class SharedKeys:
    """The keys that one server shares through an open store."""

    def __init__(
        self,
        config: ServerConfig,
        storage: Storage,
        entropy: Entropy,
        clock: Clock,
        stored: Callable[[], Awaitable[StoredCluster | None]] = no_cluster,
        client_cas: Callable[[], Cas] = tuple,
    ) -> None:
        """`stored` returns the cluster in a store without a row, `client_cas` the pins of CAs that a flag names for clients."""
        self._stored = stored
        self._client_cas = client_cas
        self._unused = (TOKEN_KEY,) if config[ServiceAccountSettings].service_account_signing_key_file else ()
        self._root = Path(config.data_dir)
        self._files = SharedKeyFiles(self._root)
        self._token = ServerTokenFile(config)
        self._agent_token = AgentTokenFile(config)
        self._storage = storage
        self._keeps_files = config[SharedKeysSettings].shared_keys == FILES
        self._entropy = entropy
        self._clock = clock
        self._data_key: Secret | None = None
        self._problem = LastingProblem(log.error)

    # ── at start ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def settle(self, make_missing: Edit, *, new_keys: bool = False) -> None:
        """Bring the data directory and the row to agree. `make_missing` makes the keys that do not exist.

        `new_keys`: make keys of the cluster that are missing, too. Raises ConfigError for the CA or the token of another cluster,
        and for missing keys; then nothing was changed.
        """
        async with self._locked():
            # Before any key is made: the store may have a cluster whose keys are missing here.
            await self._complete(make_missing, new_keys=new_keys, shares=True)
            # Under the lock, as all that follows: another process of this directory may be replacing the token.
            given, kept = self._token.given(), self._token.kept()
            token = given or kept
            for _ in range(MAX_ATTEMPTS):
                entry = await self._storage.get(KEY)
                row = envelope.decode(entry.value) if entry is not None else None
                action = next_action(self._files.on_disk(), row)
                if row is not None and row.is_sealed:
                    if token is None:
                        raise ConfigError(self._missing_token())
                    if (
                        action is not Action.KEEP
                        or given not in (None, kept)
                        or self._files.record().agreed != _agreed(row)
                    ):
                        token = await self._unlock(row, token)
                        # After the row was opened: the end of a former token stands in the sealed part, which no one
                        # else can have changed.
                        self._refuse_former(row, given, kept)
                        self._accept(row, token)
                    else:
                        self._token.keep(token)
                        self._token.follow_with(None)
                if await self._carry_out(action, entry, row, token, make_missing):
                    return
            raise StorageError("the keys of this cluster change all the time; start again")

    async def keep(self, make_missing: Edit, *, new_keys: bool = False) -> None:
        """Make the keys of a server that keeps them to itself, and claim the store for them. Arguments and errors: `settle`."""
        async with self._locked():
            await self._complete(make_missing, new_keys=new_keys, shares=False)
            row = await self._row()
            if row is not None and row.is_sealed and not await asyncio.to_thread(self._has_keys_of, row):
                raise ConfigError(self._missing_token())
            await asyncio.to_thread(make_missing, self._root)
        await self.claim()

    def _has_keys_of(self, row: SharedKeysRow) -> bool:
        """Return whether the files are those of a row. Raises ConfigError for the CA of another cluster."""
        disk = self._files.on_disk()
        check_cluster(disk, row)
        return disk.fingerprint == row.fingerprint

    async def _complete(self, make_missing: Edit, *, new_keys: bool, shares: bool) -> None:
        """Check that no key of the cluster in the store is missing; where a person asked for it, make new ones."""
        row, stored = await self._row(), None
        if row is None and (stored := await self._stored()) is not None:
            # Read again: another server makes the row before its first object.
            row = await self._row()
        if row is not None and row.is_sealed:
            # Missing keys are taken from it.
            return
        disk = await asyncio.to_thread(self._files.on_disk)
        if row is not None:
            stored = None
            row = await self._followed_claim(disk, row)
        if not new_keys:
            if shares:
                # Refuses a further server before the keys are sealed.
                next_action(disk, row)
            check_complete(disk, row, stored, self._unused)
            if stored is not None:
                check_adoptable(disk, stored, self._client_cas())
                log.info(
                    "the store has a cluster and no record of its keys: the CA %s in %s is recorded, %s",
                    disk.authorities[0],
                    disk.place,
                    "which its objects name" if stored.authorities else "and its objects name none",
                )
        elif missing := missing_keys(disk, row, stored, self._unused):
            await asyncio.to_thread(self._make_new, make_missing, row)
            log.warning("new keys were made: %s in %s", ", ".join(missing), disk.place)

    async def _followed_claim(self, disk: KeysOnDisk, row: SharedKeysRow) -> SharedKeysRow:
        """Return the claim of the CA on disk. Raises ConfigError for the CA of another cluster.

        A version before wrote the claim at a start alone, so that a rollover has left one of a CA that no file names any more. The
        objects of the store then name the CA on disk.
        """
        try:
            check_cluster(disk, row)
        except ConfigError:
            stored = await self._stored()
            if stored is None or not disk.fingerprint or not are_related(disk.authorities, stored.authorities):
                raise
            entry = await self._storage.get(KEY)
            keys = await asyncio.to_thread(self._files.key_set)
            row = envelope.claim(row.cluster, keys, row.generation + 1)
            if not await self._write_row(entry, row):
                raise
            self._files.agree(_agreed(row), tuple(keys.files))
        return row

    def _make_new(self, make_missing: Edit, row: SharedKeysRow | None) -> None:
        """Make missing keys of a cluster. That they are its keys is recorded first: a start that is killed in between goes on."""
        if row is None:
            make_missing(self._root)
            return
        keys = self._edited(make_missing)
        agreed = Agreed(row.cluster, row.generation, keys.fingerprint, keys.authorities)
        self._files.agree(agreed, self._files.record().names)
        self._files.write(keys, agreed)

    async def _carry_out(
        self, action: Action, entry: Entry | None, row: SharedKeysRow | None, token: Secret | None, make_missing: Edit
    ) -> bool:
        """Take one step. Return False when another server was faster."""
        if action is Action.SEAL:
            return await self._seal(entry, row, token, make_missing)
        # Every other action is about a row.
        assert row is not None
        if action is Action.STORE:
            return await self._store(entry, row, self._files.key_set())
        if action is Action.TAKE:
            await self._take(row)
        else:
            self._files.agree(_agreed(row), tuple(self._files.key_set().files))
        return True

    async def _seal(
        self, entry: Entry | None, row: SharedKeysRow | None, token: Secret | None, make_missing: Edit
    ) -> bool:
        made = token is None
        token = token or generate_token(self._entropy)
        # Before the row: nothing else opens it.
        self._token.keep(token)
        keys = await asyncio.to_thread(self._edited, make_missing)
        before = row or envelope.claim(uuid4(self._entropy), keys, 0)
        term = TokenTerm(token, self._seconds())
        sealed, data_key = await asyncio.to_thread(envelope.seal, before, keys, (term,), self._entropy)
        # The row before the files. Another server may have been faster: then no file was written, and its keys are taken.
        if not await self._write_row(entry, sealed):
            if made:
                self._token.forget()
            return False
        self._data_key = data_key
        await asyncio.to_thread(self._files.write, keys, _agreed(sealed))
        log.info(
            "the keys of this cluster are sealed in the store; %s opens them for further servers", self._token.path
        )
        return True

    def _refuse_former(self, row: SharedKeysRow, given: Secret | None, kept: Secret | None) -> None:
        """Raise WrongTokenError for a given token whose end has passed. The token of the data directory is not refused."""
        if given is None or given == kept:
            return
        # The caller opened the row.
        assert self._data_key is not None
        for one in envelope.open_terms(row, self._data_key):
            if one.token == given and 0 < one.until <= self._seconds():
                raise WrongTokenError(
                    f"this server token was replaced, and its grace ended at {_time(one.until)}: give --server-token-file with the "
                    "present one, which stands in server/token in the data directory of every server"
                )

    def _missing_token(self) -> str:
        return (
            "the keys of this cluster are sealed in the store: give --server-token-file with the server token, which the first "
            f"server keeps in its data directory (here it would be {self._token.path})"
        )

    # ── while the server runs ─────────────────────────────────────────────────────────────────────────────────────

    async def claim(self) -> None:
        """Claim the store for the CA of a data directory that keeps its keys, or check that it is claimed for it.

        Raises ConfigError for the CA of another cluster.
        """
        for _ in range(MAX_ATTEMPTS):
            entry = await self._storage.get(KEY)
            row = envelope.decode(entry.value) if entry is not None else None
            disk = await asyncio.to_thread(self._files.on_disk)
            if row is not None:
                check_cluster(disk, row)
                if row.fingerprint == disk.fingerprint and (row.is_sealed or disk.agreed == _agreed(row)):
                    return
                if row.is_sealed:
                    raise ConfigError(self._missing_token())
            if await self._claimed(entry, row):
                return

    async def _claimed(self, entry: Entry | None, row: SharedKeysRow | None) -> bool:
        """Write a claim for the present CA. Return False when another process was faster."""
        async with self._locked():
            keys = await asyncio.to_thread(self._files.key_set)
            claimed = row
            if row is None:
                claimed = envelope.claim(uuid4(self._entropy), keys)
            elif row.fingerprint != keys.fingerprint:
                claimed = envelope.claim(row.cluster, keys, row.generation + 1)
            # A row is there, or a claim was made of the keys.
            assert claimed is not None
            if claimed is not row and not await self._write_row(entry, claimed):
                return False
            await asyncio.to_thread(self._files.agree, _agreed(claimed), tuple(keys.files))
            return True

    async def follow(self) -> bool:
        """Take a row that is newer than the files. Return whether the files changed. Raises MooringError."""
        row = await self._row()
        agreed = self._files.record().agreed
        if row is None or not row.is_sealed or (row.cluster, row.generation) == (agreed.cluster, agreed.generation):
            return False
        async with self._locked():
            disk = self._files.on_disk()
            check_cluster(disk, row)
            # Looked at again under the lock.
            if disk.agreed.cluster == row.cluster and disk.agreed.generation >= row.generation:
                # Another process of this data directory was faster, or the store is an earlier backup.
                return False
            token = self._token.kept()
            if token is None:
                raise ConfigError(self._missing_token())
            try:
                token = await self._unlock(row, token)
            except WrongTokenError:
                self._token.end(token, self._clock.now())
                raise
            self._accept(row, token)
            await self._take(row)
        if disk.fingerprint == row.fingerprint:
            log.info("the server token was changed by another server; %s has the present one", self._token.path)
            return False
        log.info("the keys of this cluster were changed by another server and have been taken from the store")
        return True

    async def change(self, edit: Edit) -> bool:
        """Change the keys of the cluster. Return False when another server changed them meanwhile; then nothing was changed.

        `edit` changes the files below `pki/` of a copy. Raises MooringError.
        """
        async with self._locked():
            entry = await self._storage.get(KEY)
            row = envelope.decode(entry.value) if entry is not None else None
            if row is None or not row.is_sealed or _agreed(row) != self._files.record().agreed:
                return False
            token = self._token.kept()
            if token is None:
                raise ConfigError(self._missing_token())
            await self._unlock(row, token)
            return await self._store(entry, row, await asyncio.to_thread(self._edited, edit))

    async def run(self, clock: Clock) -> None:
        """Follow the row every FOLLOW_SECONDS until cancelled. A failure is logged once, and tried again."""
        while True:
            await clock.sleep(FOLLOW_SECONDS)
            try:
                await self.follow()
                await self.remove_expired()
                self._problem.note("")
            except StorageError as error:
                self._problem.note(f"changes of the keys of this cluster cannot be read: {error}")
            except MooringError as error:
                self._problem.note(f"the keys of this cluster were changed and are not followed: {error}")

    # ── tokens ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def rotate(self, new: Secret | None, grace: timedelta, confirm: Confirm = nobody_asks) -> Rotated:
        """Replace the server token by `new`, or by one that is made here. The former one works until the end of the grace.

        `confirm` is awaited once no other rotation of this data directory can begin.
        The row changes once. A claim becomes a sealed row. Raises MooringError; then nothing was changed.
        """
        if self._keeps_files:
            raise ConfigError(
                f"with --shared-keys files the servers share no token: replace {self._token.path} on each, which they follow"
            )
        async with self._locked():
            await confirm()
            # Read after the confirmation, which may have taken long: the row of this moment is replaced.
            made = generate_token(self._entropy) if new is None else None
            entry, row, keys, before = await self._present()
            agents = _agent_tokens(keys)
            if new is not None and agents is not None and digest(new) in [one.sha256 for one in agents.terms]:
                raise KnownTokenError("the new server token is an agent token of this cluster; give another one")
            after = rotated(before, made or new or Secret(b""), grace, self._clock.now())
            sealed = await self._reseal(entry, row, keys, before, after)
        wrap, *former = sealed.wraps
        ends = max((one.until for one in former), default=0)
        log.info(
            "the server token was replaced (%s); %s",
            wrap.id,
            f"the former one works until {_time(ends)}" if ends else "the former one works no more",
        )
        return Rotated(wrap.id, datetime.fromtimestamp(ends, UTC) if ends else None, made)

    async def rotate_agent(self, new: Secret | None, grace: timedelta, confirm: Confirm = nobody_asks) -> Rotated:
        """Replace the agent token by `new`, or by one that is made here. The former one works until the end of the grace.

        The former one is that of this data directory before the first rotation. Raises MooringError; then nothing was changed.
        """
        if self._keeps_files:
            raise ConfigError(
                "with --shared-keys files the servers share no agent token: replace --agent-token-file on each, which they follow"
            )
        async with self._locked():
            await confirm()
            entry, row, keys, server_terms = await self._present()
            if not row.is_sealed:
                raise AgentRotationRefusedError(
                    "no agent joins this cluster with an agent token: start its server with --k3s-supervisor first"
                )
            if (level := await level_in_force(self._storage)) < AGENT_TOKENS_LEVEL:
                raise AgentRotationRefusedError(
                    f"the format of this store has level {level}, and a rotated agent token needs level {AGENT_TOKENS_LEVEL}: the "
                    "servers raise it by themselves once all of them run this version; try again then"
                )
            if self._files.record().agreed.generation > row.generation:
                raise AgentRotationRefusedError(
                    "the store has older keys than this data directory, because it was restored from an earlier backup: start a "
                    "server again, which stores the present ones, then rotate"
                )
            token = new if new is not None else generate_token(self._entropy)
            server_tokens = [digest(one.token) for one in server_terms]
            before = self._agent_terms(keys, server_terms)
            after = servertoken.rotated(before, token, self._new_id(), server_tokens, grace, self._clock.now())
            changed = keys.with_file(servertoken.NAME, servertoken.encode_agent_tokens(after))
            # `_present` opened the row.
            assert self._data_key is not None
            # A change of theirs counts as taken with this row.
            self._token.accept(server_terms, (), self._clock.now())
            following = envelope.reseal(row, changed, self._data_key, self._entropy)
            if not await self._write_row(entry, following):
                raise StorageError("another server changed the keys of this cluster at the same time; try again")
            await asyncio.to_thread(self._files.write, changed, _agreed(following))
            # Last: a row that could not be written leaves the former one.
            self._agent_token.keep(token)
        present, *former = after.terms
        ends = max((one.until for one in former if not one.is_over(present.created)), default=0)
        log.info(
            "the agent token was replaced (%s); %s",
            present.id,
            f"the former one works until {_time(ends)}" if ends else "the former one works no more",
        )
        return Rotated(present.id, datetime.fromtimestamp(ends, UTC) if ends else None, token if new is None else None)

    def _agent_terms(self, keys: SharedKeySet, server_terms: tuple[TokenTerm, ...]) -> tuple[AgentTerm, ...]:
        """Return the tokens with which agents join now. Raises ConfigError."""
        if (tokens := _agent_tokens(keys)) is not None:
            return tokens.terms
        if (kept := self._agent_token.kept()) is not None:
            return (AgentTerm(self._new_id(), digest(kept)),)
        return tuple(AgentTerm(self._new_id(), digest(one.token), one.created, one.until) for one in server_terms)

    async def agent_tokens(self) -> AgentTokens | None:
        """Return the agent tokens in the store; None before their first rotation. Raises MooringError."""
        async with self._locked():
            _, _, keys, _ = await self._present()
        return _agent_tokens(keys)

    def _new_id(self) -> str:
        return self._entropy(8).hex()

    async def remove_expired(self) -> bool:
        """Remove the wraps of tokens whose grace has ended. Return whether there were any. Raises MooringError."""
        row = await self._row()
        if row is None or not any(one.is_over(self._seconds()) for one in row.wraps):
            return False
        async with self._locked():
            entry, row, keys, before = await self._present()
            after = unexpired(before, self._clock.now())
            if len(after) == len(before):
                # Another server was faster.
                return False
            await self._reseal(entry, row, keys, before, after)
        log.info("the grace of a former server token has ended; it opens nothing any more")
        return True

    async def row(self) -> SharedKeysRow | None:
        """Return the row as it stands in the store. Raises MooringError."""
        return await self._row()

    async def _present(self) -> tuple[Entry, SharedKeysRow, SharedKeySet, tuple[TokenTerm, ...]]:
        """Return the row with its keys and tokens; those of the data directory for a claim. Raises MooringError."""
        entry = await self._storage.get(KEY)
        row = envelope.decode(entry.value) if entry is not None else None
        if entry is None or row is None:
            raise ConfigError("this store has no keys of a cluster yet: start its server first")
        token = self._token.kept()
        if not row.is_sealed:
            check_cluster(self._files.on_disk(), row)
            keys = await asyncio.to_thread(self._files.key_set)
            return entry, row, keys, () if token is None else (TokenTerm(token),)
        if token is None:
            raise ConfigError(self._missing_token())
        await self._unlock(row, token)
        # It has opened the row.
        assert self._data_key is not None
        terms = envelope.open_terms(row, self._data_key) or (TokenTerm(token),)
        return entry, row, envelope.open_keys(row, self._data_key), terms

    async def _reseal(
        self,
        entry: Entry,
        row: SharedKeysRow,
        keys: SharedKeySet,
        before: tuple[TokenTerm, ...],
        after: tuple[TokenTerm, ...],
    ) -> SharedKeysRow:
        """Seal the keys for other tokens: the row first, then the files. Raises MooringError."""
        sealed, data_key = await asyncio.to_thread(envelope.seal, row, keys, after, self._entropy)
        # Before the row: a process that is killed right after the write has the token that opens the row.
        self._token.follow_with(after[0].token)
        if not await self._write_row(entry, sealed):
            self._token.follow_with(None)
            raise StorageError("another server changed the keys of this cluster at the same time; try again")
        # Only now: until the write, the row in the store is sealed with the other data key.
        self._data_key = data_key
        # Removes what `follow_with` wrote.
        self._token.accept(after, before, self._clock.now())
        await asyncio.to_thread(self._files.write, keys, _agreed(sealed))
        return sealed

    # ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _row(self) -> SharedKeysRow | None:
        entry = await self._storage.get(KEY)
        return envelope.decode(entry.value) if entry is not None else None

    async def _unlock(self, row: SharedKeysRow, token: Secret) -> Secret:
        """Find the data key of a row, and return the token that opens it: `token`, or that of a rotation that was not finished.

        Raises WrongTokenError, DamagedKeysError.
        """
        if self._data_key is not None:
            try:
                envelope.open_keys(row, self._data_key)
            except WrongTokenError:
                # Sealed again, after a change of tokens.
                self._data_key = None
            else:
                return token
        following = self._token.following()
        for candidate in (token, *([following] if following is not None else [])):
            try:
                self._data_key = await asyncio.to_thread(envelope.unlock, row, candidate)
            except WrongTokenError:
                continue
            return candidate
        raise WrongTokenError(
            "the keys of this cluster are sealed in the store, and this server token does not open them: give --server-token-file "
            "with the one that the other servers keep in server/token of their data directories; a store that was restored opens "
            "with the token of the time of the backup"
        )

    def _accept(self, row: SharedKeysRow, token: Secret) -> None:
        """Write the tokens of a row that `_unlock` opened into the data directory."""
        # The caller opened the row.
        assert self._data_key is not None
        terms = envelope.open_terms(row, self._data_key) or (TokenTerm(token),)
        self._token.accept(terms, (), self._clock.now())

    def _seconds(self) -> int:
        return int(self._clock.now().timestamp())

    async def _take(self, row: SharedKeysRow) -> None:
        """Write the keys of a row that `_unlock` opened."""
        # The caller opened the row.
        assert self._data_key is not None
        await asyncio.to_thread(self._files.write, envelope.open_keys(row, self._data_key), _agreed(row))

    def _edited(self, edit: Edit) -> SharedKeySet:
        """Return the keys of the data directory after `edit` changed a copy of them."""
        with self._files.staged() as staging:
            edit(staging)
            return SharedKeyFiles(staging).key_set()

    async def _store(self, entry: Entry | None, row: SharedKeysRow, keys: SharedKeySet) -> bool:
        # The caller opened the row.
        assert self._data_key is not None
        generation = self._files.record().agreed.generation
        # The agent tokens are those of the row: an edit of the CA's files must not bring back former ones. After a
        # restore of an earlier backup the files have the newer ones.
        if generation <= row.generation or servertoken.NAME not in keys.files:
            stored = envelope.open_keys(row, self._data_key)
            keys = keys.with_file(servertoken.NAME, stored.files.get(servertoken.NAME))
            if keys.fingerprint == stored.fingerprint:
                await asyncio.to_thread(self._files.write, keys, _agreed(row))
                return True
        following = envelope.reseal(row, keys, self._data_key, self._entropy, after=generation)
        if not await self._write_row(entry, following):
            return False
        await asyncio.to_thread(self._files.write, keys, _agreed(following))
        return True

    async def _write_row(self, entry: Entry | None, row: SharedKeysRow) -> bool:
        """Store the row in place of `entry`. Return False when the store has another one by now."""
        try:
            if entry is None:
                await self._storage.create(KEY, envelope.encode(row))
            else:
                await self._storage.update(KEY, envelope.encode(row), expected=entry.revision)
        except (KeyExistsError, RevisionMismatchError):
            return False
        return True

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        """Hold the lock of the data directory, for which other processes may wait."""
        held = exclusive(self._root)
        await asyncio.to_thread(held.__enter__)
        try:
            yield
        finally:
            held.__exit__(None, None, None)


def _agreed(row: SharedKeysRow) -> Agreed:
    return Agreed(row.cluster, row.generation, row.fingerprint, row.authorities)


def _agent_tokens(keys: SharedKeySet) -> AgentTokens | None:
    """Return the agent tokens in a set of keys; None before their first rotation."""
    content = keys.files.get(servertoken.NAME)
    return decode_agent_tokens(content.reveal()) if content is not None else None


def _time(seconds: int) -> str:
    return rfc3339(datetime.fromtimestamp(seconds, UTC))
