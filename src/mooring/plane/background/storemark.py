"""The file `store.mark` of the data directory: what this server remembers of its store, and the judgement of a store that is older.

Rules kept here:
* The mark has the newest revision that was seen, the cluster, the end of the lineage, and what ended: revocations, tokens and Nodes
  that were deleted, joins that were counted, the rollover of the CA, the generation of the shared keys (`mooring.trust.ends.mark`).
* It is written from the state that the watch cache has, so after the commit. It may lag and never leads. A clean stop writes it;
  after `kill -9` it is behind by PAUSE or, where only the revision changed, by REVISION_PAUSE.
* A store is older than the mark when its newest revision is lower, when a restore left out the revision of the mark, when its count
  of what this server remembered is lower (`mooring.storage.witnesses`: other servers have written to the copy since), or when it is
  another cluster. Revisions then go on beyond those that were seen, so that none has two meanings: the jump is larger than what a
  server writes between two marks. Watches from before end as compacted, and clients read everything again.
* A store that lacks a revocation of the mark, or the NodeIdentity of a deleted Node, which nobody deleted, is older in the same
  way: damage takes rows, too.
* A store that was restored while this server runs, which the driver of etcd notices, is judged before the next write of the mark.
* What an older store would bring back is written into the ConfigMap of ends (`mooring.api.mooring.ends`), which closes the gate on
  every server. Until it is settled the mark stays as it was: another start, and another worker, come to the same judgement.
* Revocations are made again at once, before anything is listed: that only denies, and depends on no list.
* The list of ends is bounded. While one server remembers more, an entry says so, and nothing of that kind counts.
* A damaged mark is an end of its own, which an administrator waives. The file is then kept beside the new one. A revision that is
  further ahead of the store than servers write is damage, and moves no revisions.
* A mark that exists and cannot be read now (no descriptor left, a failing disk) is not damaged: the server does not start, because
  it would skip the judgement.
* Of several workers the one that holds the lock writes. A store in memory has no mark.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import platform
import secrets
import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.api.meta.printcolumns import spec_of
from mooring.api.mooring import certificaterevocation, ends, lineagerecord, nodeidentity
from mooring.api.mooring.ends import ROLLOVERS, End
from mooring.api.mooring.membership import is_terminating
from mooring.apimachinery.options import ListOptions, WriteOptions
from mooring.apimachinery.schema import Obj
from mooring.client.files import MAX_READ, read_limited, write_atomic
from mooring.clock import Clock, rfc3339
from mooring.controllers.bootstrap.tokensecrets import expiration_of, is_token
from mooring.errors import AlreadyExistsError, ApiError, ConfigError, ConflictError, MooringError, StorageError
from mooring.identity import API_SERVER, MASTERS, UserInfo
from mooring.plane.files.lockfile import no_lock, open_lock
from mooring.plane.wakeups import wait_for_event
from mooring.registry.cache.events import Event
from mooring.registry.store import Registry
from mooring.storage.contract import CompactedError, Storage
from mooring.storage.restores import Restore, read_restores, record_restore
from mooring.storage.witnesses import add_witness, read_witness
from mooring.trust.bootstraptoken import tokensecret
from mooring.trust.ends.mark import MAX_ENDS, Mark, parse_mark
from mooring.trust.lineage.chain import Checkpoint, checkpoint_of, parse_checkpoint, record_name
from mooring.trust.sharedkeys import envelope

log = logging.getLogger("mooring")

FILE_NAME = "store.mark"
LOCK_NAME = "store.mark.lock"
DAMAGED_SUFFIX = ".damaged"
MAX_BYTES = 64 << 20
PAUSE = 0.2
"""Seconds between two writes after something ended: each waits for the disk."""
REST_FACTOR = 20
"""Rest after a write as a multiple of its time, so that a mark of 2 MB takes a twentieth of one thread."""
LAST_WRITE_SECONDS = 2.0
"""Time for the write at a stop, which waits no longer for a store that does not answer. The file has all but the last moments."""
REVISION_PAUSE = 5.0
"""Seconds between two writes when only the revision has changed."""
JUMP = 1_000_000_000
"""Revisions that are left out: more than a server writes between two marks, as many as a restored snapshot leaves out."""
MAX_AHEAD = 1 << 44
"""Revisions that a store may be behind: 55 years of 10 000 writes a second. More is a number that nobody has written."""
TRIES = 10
"""Attempts to advance, or to write the ConfigMap, while other servers do so."""
LOOK_BACK = 1000
"""Changes before the revision of the mark that are read, too: it is taken a little later than what the mark has."""
READ_WITHIN = 10.0
"""Seconds in which the store gives the next of the changes since the mark. On a slow disk all of them take longer."""
MADE_AT_ONCE = 64
"""Revocations that are written at a time: the store commits them together."""
LISTED = 20
"""Ends that the log lists; `mooring ends list` lists all."""

KUBE_SYSTEM = "kube-system"
_USER = UserInfo(API_SERVER, groups=(MASTERS,))
_FOLLOWED = (certificaterevocation.PLURAL, "secrets", "nodes", nodeidentity.PLURAL, ROLLOVERS, ends.CONFIG_MAPS)
_RECORDED = "recorded"
"""Field of a deleted Node whose NodeIdentity said so when the mark was written."""


class DamagedMarkError(ConfigError):
    """The content of the file is not a mark."""


def read_mark(directory: Path) -> Mark:
    """Return the mark in a data directory; an empty one without a file.

    Raises DamagedMarkError for content that is not a mark, ConfigError for a file that cannot be read now.
    """
    path = directory / FILE_NAME
    text = _content(path, MAX_BYTES)
    if text is None:
        return _of_earlier_versions(directory)
    try:
        return parse_mark(text)
    except ConfigError as error:
        raise DamagedMarkError(f"{path}: {error}") from error


def check_lock(directory: Path) -> None:
    """Raise ConfigError when the mark of a data directory can never be written, because its lock file cannot be opened."""
    os.close(open_lock(directory / LOCK_NAME))


def _content(path: Path, limit: int = MAX_READ) -> bytes | None:
    """Return the content of a file, None when there is none. Raises ConfigError when it cannot be read."""
    try:
        return read_limited(path, limit)
    except ConfigError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def _of_earlier_versions(directory: Path) -> Mark:
    """Return what `store.head` and `lineage.head` say, the files that the mark has replaced. Raises as `read_mark` does."""
    head, lineage = directory / "store.head", directory / "lineage.head"
    revision, lines = _content(head), _content(lineage)
    try:
        checkpoints = tuple(parse_checkpoint(line) for line in (lines or b"").decode("ascii").split())
        return Mark(int((revision or b"0").decode("ascii")), lineage=checkpoints)
    except (ValueError, ConfigError):
        raise DamagedMarkError(f"{head} or {lineage} is damaged") from None


class StoreMark:
    """The mark of one data directory, for one process. Raises ConfigError when the file cannot be read now."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._directory = directory
        self._path = directory / FILE_NAME
        self._clock = clock
        self._server = hashlib.sha256(f"{platform.node()}:{directory.resolve()}".encode()).hexdigest()[:16]
        """Machine and data directory of this server, which are the same after a restart and for each worker."""
        self._damage = ""
        """Why the mark is damaged, until that is settled."""
        try:
            self._mark = read_mark(directory)
        except DamagedMarkError as error:
            self._mark, self._damage = Mark(), str(error)
            log.error("what this server remembers of its store is damaged: %s", error)
        self.is_continued = True
        """False in the first life of a server on a store that was restored from an older copy, emptied or replaced."""
        self._is_older = False
        """True while the store is older than the mark, and that is not settled."""
        self._ends: dict[str, dict[str, Mapping[str, Any]]] = {
            kind: dict(found) for kind, found in self._mark.ends.items()
        }
        self._evidence: tuple[Checkpoint, ...] = self._mark.lineage[:-1]
        """Records that the store once had, and has no more."""
        self._head = self._mark.lineage[-1] if self._mark.lineage else None
        self._registry: Registry | None = None
        self._storage: Storage | None = None
        self._changed = asyncio.Event()
        self._owes_witness = False
        """True when the store may have a lower count than the mark, and that was settled."""
        self._lock_file: int | None = None
        self._written = b""
        self._is_reported = False
        self._made_again: set[str] = set()
        """Revocations that this process made again: one that an administrator deletes after that stays deleted."""
        self._has_revoked = False
        """True once all revocations that the store lacked were made again."""
        self._writing = threading.Lock()
        """Held while the file is written: a stop may come while a thread writes it, and must write after that."""

    # -- at the start ------------------------------------------------------------------------------------------------

    async def continue_beyond(self, storage: Storage) -> None:
        """Let the revisions of a store that is older than the mark go on beyond those that were seen. Raises StorageError."""
        seen = self._mark.revision
        floor = max((one.floor for one in await read_restores(storage) if one.lost(seen)), default=0)
        newest = await storage.revision()
        if seen - newest > MAX_AHEAD and not floor:
            self._damage = f"{self._path}: its revision {seen} is further ahead of the store than servers write"
            self._mark = replace(self._mark, revision=0)
            log.error("what this server remembers of its store is damaged: %s", self._damage)
            return
        if newest < seen or floor:
            self.is_continued = False
        if newest < seen and not floor:
            log.error(
                "the store is at revision %d, and this server has seen revision %d: the store was restored from an older copy, "
                "emptied, or replaced by another one. What was written in between is lost, and clients read everything again",
                newest,
                seen,
            )
            floor = seen + JUMP
            await record_restore(storage, newest, floor)  # before the jump: a start that is killed in between finds it
        elif not floor and self._mark.witness > await read_witness(storage, self._mark.server):
            self.is_continued = False
            log.error(
                "the store was restored from an older copy, emptied, or replaced by another one, and other servers have written to "
                "it since: it is at revision %d, and lacks what this server has seen. Clients read everything again",
                newest,
            )
            floor = newest + JUMP
            await record_restore(storage, 0, floor)  # which revision was restored is not known
        for attempt in range(1, TRIES + 1):
            if await storage.revision() >= floor:
                return
            try:
                await storage.advance(floor)
            except StorageError:
                if attempt == TRIES:
                    raise

    async def compare(self, registry: Registry, storage: Storage) -> None:
        """Find out whether the store is older than the mark. Raises StorageError."""
        self._registry, self._storage = registry, storage
        cluster = _cluster(registry)
        restores = await read_restores(storage)
        self._is_older = _is_older(self._mark, cluster, restores) or await self._has_lost(registry, storage)
        if self._mark.cluster and cluster not in (None, self._mark.cluster) and self.is_continued:
            self.is_continued = False
            log.error(
                "the store was emptied, or is that of another cluster: this server remembers cluster %s",
                self._mark.cluster,
            )

    async def _has_lost(self, registry: Registry, storage: Storage) -> bool:
        """Return true when the store lacks revocations or identities of the mark, and not because they were deleted.

        Raises StorageError.

        It cannot be told for a mark that is older than the oldest change in the store: other servers may have deleted them. A
        damaged change is left out. Damage takes several records at a time, and must not hide that one of them is missing. So it is
        with changes that are not read: what is missing counts as lost.
        """
        nodes = self._mark.ends.get(End.NODE, {})
        missing = {
            BY_PLURAL[plural].key_prefix() + name
            for plural, names in (
                (certificaterevocation.PLURAL, list(self._mark.ends.get(End.REVOCATION, {}))),
                (nodeidentity.PLURAL, [name for name, value in nodes.items() if value.get(_RECORDED)]),
            )
            for name in names
            if registry.views[plural].get(name) is None and not registry.views[plural].problem(name)
        }
        first, newest = await storage.compacted(), await storage.revision()
        if not missing or first > self._mark.revision:
            return False
        deleted: set[str] = set()
        after = max(first, self._mark.revision - LOOK_BACK)
        try:
            while after < newest:
                try:
                    async with aclosing(cast("Any", storage.watch("/", after=after))) as batches:
                        while after < newest:
                            async with asyncio.timeout(READ_WITHIN):
                                changes = await anext(batches)
                            for change in changes:
                                after = change.revision
                                (deleted.add if change.entry is None else deleted.discard)(change.key)
                except CompactedError:
                    if await storage.compacted() > after:
                        return False
                    after += 1  # the next change is damaged
        except TimeoutError:
            log.error("the changes since the mark cannot be read: the store gave none within %d s", READ_WITHIN)
        except StorageError as error:  # changes are lost, too; what the mark has is known
            log.error("the changes since the mark cannot be read: %s", error)
        lost = missing - deleted
        if lost:
            log.error(
                "the store has lost %d objects that deny access and were not deleted: see `mooring store verify`",
                len(lost),
            )
        return bool(lost)

    @property
    def is_settled(self) -> bool:
        """True when the store is not older than the mark, or that was settled."""
        return not self._is_older and not self._damage

    async def judge(self) -> None:
        """Revoke again what the store would bring back, and write the other ends into their ConfigMap, unless it is settled.

        Raises MooringError.
        """
        if self.is_settled:
            return
        registry = self._registry
        assert registry is not None  # `compare` was called
        await self._revoke_again()
        for _ in range(TRIES):
            view = registry.views[ends.CONFIG_MAPS]
            if view.problem(ends.NAME, ends.NAMESPACE):
                return  # the gate is closed until it can be read
            config_map = view.get(ends.NAME, ends.NAMESPACE)
            data: dict[str, str] = dict((config_map or {}).get("data") or {})
            wanted = await self._wanted(data)
            unread = tuple(ends.undecided(self._mark.ends, _last(self._mark.lineage), registry.views))
            added = [one for one in wanted.items() if one[0] not in data]
            room = max(0, ends.MAX_PENDING - sum(not ends.is_more(key) for key in ends.pending(config_map)))
            listed = dict(added[:room])
            more = self._more((*(ends.key_of(kind, "") for kind in unread), *(key for key, _ in added[room:])))
            others = {key: text for key, text in data.items() if not self._is_own_more(key)}
            merged = {**others, **listed, **more}
            if merged == data:
                if not wanted and not unread:
                    self._adopt(data)
                return
            change = Change(_USER, self._clock.now(), writer="store-mark")
            kind = BY_PLURAL[ends.CONFIG_MAPS]
            obj = config_map or {"metadata": {"name": ends.NAME, "namespace": ends.NAMESPACE}}
            try:
                if config_map is None:
                    await registry.writer.create(kind, ends.NAMESPACE, {**obj, "data": merged}, change, WriteOptions())
                else:
                    await registry.writer.update(
                        kind, ends.NAMESPACE, ends.NAME, {**obj, "data": merged}, change, WriteOptions()
                    )
            except (AlreadyExistsError, ConflictError):
                await registry.reader.fresh()
                continue
            if listed and self._holds_lock():
                self._report(listed)
            if not wanted and not unread:
                self._adopt(merged)
            return
        raise StorageError("the ends of a store that is older could not be written: other servers write them, too")

    async def _revoke_again(self) -> None:
        """Make the revocations again that the store lacks. Raises StorageError.

        One that cannot be made is damage of the mark: nothing is issued until an administrator has waived it.
        """
        registry = self._registry
        assert registry is not None
        remembered = {str(End.REVOCATION): self._mark.ends.get(End.REVOCATION, {})}
        try:
            coming = list(ends.returning(remembered, None, registry.views, 0, self._clock.now()))
        except (ValueError, KeyError, TypeError) as error:
            self._damage = f"{self._path}: a revocation has no value that can be read ({error!r})"
            coming = []
        missing = [(name, spec) for _, name, spec in coming if name not in self._made_again]
        for first in range(0, len(missing), MADE_AT_ONCE):
            some = (self._revoke(*one) for one in missing[first : first + MADE_AT_ONCE])
            for outcome in await asyncio.gather(*some, return_exceptions=True):
                if outcome is not None:
                    raise outcome
        self._has_revoked = True
        if missing:
            log.error(
                "the store is older than what this server remembers: %d revocations that it lacked were made again. To take one "
                "back, delete it",
                len(missing),
            )

    async def _revoke(self, name: str, spec: Mapping[str, Any]) -> None:
        """Make a revocation again, and before it one of each certificate that it was certain to revoke.

        What was known when the entry of a node was written cannot be known again: it revokes certificates whatever the clock said.
        """
        known = certificaterevocation.known_serial_numbers(dict(spec)) if spec.get("nodeName") else ()
        shared = {field: spec[field] for field in ("reason", "message", "expiresAt") if spec.get(field)}
        try:
            for serial_number in known:
                entry = certificaterevocation.serial_entry(serial_number)
                await self._create_revocation(entry, {"serialNumber": serial_number, **shared})
            await self._create_revocation(name, spec)
        except ApiError as error:
            log.error("the revocation %s, which the store lacks, could not be made again: %s", name, error)
            self._damage = f"{self._path}: the revocation {name} cannot be made again"
        self._made_again.add(name)

    async def _create_revocation(self, name: str, spec: Mapping[str, Any]) -> None:
        registry = self._registry
        assert registry is not None
        kind = BY_PLURAL[certificaterevocation.PLURAL]
        change = Change(_USER, self._clock.now(), writer="store-mark")
        for _ in range(TRIES):
            if not ends.revokes_less(registry.views, name, spec):
                return
            present = registry.views[certificaterevocation.PLURAL].get(name)
            try:
                if present is None:
                    obj = {"metadata": {"name": name}, "spec": dict(spec)}
                    await registry.writer.create(kind, "", obj, change, WriteOptions())
                else:  # it revokes up to an earlier moment
                    obj = {**present, "spec": {**spec_of(present), **spec}}
                    await registry.writer.update(kind, "", name, obj, change, WriteOptions())
                return
            except (AlreadyExistsError, ConflictError):
                await registry.reader.fresh()  # another process does the same
        raise ConflictError("other processes write it, too")

    def _more(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the entries that stand for ends without room in the list, one for each kind."""
        kinds = dict.fromkeys(key.partition(".")[0] for key in keys)
        return {
            ends.more_key(kind, self._server): ends.entry(f"{kind}-{self._server}", {"kind": kind}) for kind in kinds
        }

    def _is_own_more(self, key: str) -> bool:
        return ends.is_more(key) and key.endswith(f"-{self._server}")

    async def _wanted(self, data: Mapping[str, str]) -> dict[str, str]:
        """Return the entries of ends that would come back and were not waived."""
        registry = self._registry
        assert registry is not None
        found: dict[str, str] = {}
        if self._damage:
            name = self._path.parent.name
            found[ends.key_of(End.MARK, name)] = ends.entry(name, self._damaged())
        keys = await self._shared_keys()
        try:
            coming = ends.returning(
                {kind: values for kind, values in self._mark.ends.items() if kind != End.REVOCATION},
                _last(self._mark.lineage),
                registry.views,
                keys["generation"],
                self._clock.now(),
                keys["created"],
            )
            for kind, name, value in coming:
                found[ends.key_of(kind, name)] = ends.entry(name, value)
        except (ValueError, KeyError, TypeError) as error:
            self._damage = f"{self._path}: an end has no value that can be read ({error!r})"
            found[ends.key_of(End.MARK, "values")] = ends.entry("values", self._damaged())
        return {key: text for key, text in found.items() if not ends.is_waived(data, key, text)}

    def _damaged(self) -> dict[str, Any]:
        """Return the value of a damaged mark. The time of the file tells it from one that was waived before."""
        try:
            return {"problem": self._damage, "modified": self._path.stat().st_mtime_ns}
        except OSError:
            return {"problem": self._damage}

    def _report(self, wanted: Mapping[str, str]) -> None:
        keys = list(wanted)
        more = f" and {len(keys) - LISTED} more" if len(keys) > LISTED else ""
        log.error(
            "the store is older than what this server remembers. It serves, and issues nothing, until these ends are applied or "
            "waived with `mooring ends`: %s%s",
            ", ".join(keys[:LISTED]),
            more,
        )

    def _adopt(self, data: Mapping[str, str]) -> None:
        """Go on with the store as it is: nothing would come back, or all of it was settled."""
        if self._damage and self._holds_lock() and self._path.exists():
            self._path.replace(self._path.with_name(FILE_NAME + DAMAGED_SUFFIX))
        assert self._registry is not None  # `compare` was called
        for kind in (End.TOKEN, End.NODE):
            for name, remembered in tuple(self._ends.get(kind, {}).items()):
                self._set(kind, name, self._without_waived(kind, name, remembered, data))
        self._is_older, self._damage, self._owes_witness = False, "", True
        # with the revision that was lost the next write would find the same restore, and write nothing
        self._mark = replace(self._mark, revision=max(self._mark.revision, self._registry.cache.revision))
        self._read_state()
        log.info("nothing that this server remembers as ended would come back from the store; certificates are issued")

    def _without_waived(
        self, kind: End, name: str, remembered: Mapping[str, Any], data: Mapping[str, str]
    ) -> Mapping[str, Any] | None:
        """Return what stays remembered of one name: objects that had it beside the one that was waived."""
        assert self._registry is not None  # `compare` was called
        try:
            coming = list(ends.returning({kind: {name: remembered}}, None, self._registry.views, 0, self._clock.now()))
        except (ValueError, KeyError, TypeError):
            return None  # damage, which was waived
        for _, _, value in coming:
            if ends.is_waived(data, ends.key_of(kind, name), ends.entry(name, value)):
                return ends.without(remembered, value["uid"])
        return remembered

    # -- while the server runs ---------------------------------------------------------------------------------------

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Follow what ends and write the mark until the block ends, and once more then."""
        registry = self._registry
        assert registry is not None  # `compare` was called
        async with AsyncExitStack() as stack:
            for plural in _FOLLOWED:
                await self._follow(stack, registry, plural, ListOptions(watch=True))
            await self._follow(
                stack, registry, lineagerecord.PLURAL, ListOptions(watch=True, send_initial_events=False)
            )
            self._read_state()
            await self.write()
            task = asyncio.create_task(self._run(), name="store mark")
            try:
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_WRITE_SECONDS):
                        await self.write()
                self._release_lock()

    async def _follow(self, stack: AsyncExitStack, registry: Registry, plural: str, options: ListOptions) -> None:
        watch = await registry.reader.watch(
            BY_PLURAL[plural],
            KUBE_SYSTEM if BY_PLURAL[plural].resource.namespaced else "",
            options,
            lambda event: self._note(plural, event),
            readable_only=True,
        )
        stack.callback(watch.close)
        await watch.replay()

    async def _run(self) -> None:
        while True:
            await wait_for_event(self._changed, self._clock.sleep(REVISION_PAUSE))
            self._changed.clear()
            began = self._clock.monotonic()
            try:
                await self.write()  # finds out that the store was restored
                if not self.is_settled and self._has_something_to_do():
                    await self.judge()
                    await self.write()
            except MooringError as error:
                log.warning("what this server remembers of its store was not brought up to date: %s", error)
            await self._clock.sleep(max(PAUSE, REST_FACTOR * (self._clock.monotonic() - began)))

    def _has_something_to_do(self) -> bool:
        """Return true when revocations have to be made again, or when what was listed is settled."""
        assert self._registry is not None  # `compare` was called
        view = self._registry.views[ends.CONFIG_MAPS]
        waits = any(not ends.is_more(key) for key in ends.pending(view.get(ends.NAME, ends.NAMESPACE)))
        return not self._has_revoked or not (waits or view.problem(ends.NAME, ends.NAMESPACE))

    def _note(self, plural: str, event: Event) -> None:
        is_deleted = event.type == "DELETED"
        if plural == "nodes" and not is_deleted and not _is_terminating(event):
            return  # most events by far: the object is not decoded for them
        if plural == nodeidentity.PLURAL and not is_deleted:
            return
        obj = event.obj
        if plural == lineagerecord.PLURAL:
            self._note_record(obj, is_deleted)
        elif plural == certificaterevocation.PLURAL:
            self._set(End.REVOCATION, obj["metadata"]["name"], None if is_deleted else _spec(obj))
        elif plural == "secrets":
            self._note_secret(obj, is_deleted)
        elif plural == "nodes":
            self._note_node(obj)
        elif plural == nodeidentity.PLURAL:
            known = self._ends.get(End.NODE, {}).get(obj["metadata"]["name"], {})
            if known.get(_RECORDED):
                self._set(End.NODE, obj["metadata"]["name"], {key: known[key] for key in known if key != _RECORDED})
        elif plural == ROLLOVERS:
            if not is_deleted:
                phase = str((obj.get("status") or {}).get("phase", ""))
                value = {"uid": obj["metadata"]["uid"], "phase": phase, "reached": ends.reached(obj)}
                name = obj["metadata"]["name"]
                self._set(End.ROLLOVER, name, ends.after_waiver(self._listed(), End.ROLLOVER, name, value))
        elif (obj["metadata"]["name"], obj["metadata"].get("namespace")) == (ends.NAME, ends.NAMESPACE):
            self._changed.set()

    def _note_node(self, node: Obj) -> None:
        """Note a Node whose deletion has begun, or ended: finalizers do not prolong the membership."""
        name, uid = node["metadata"]["name"], node["metadata"]["uid"]
        known = self._ends.get(End.NODE, {}).get(name)
        value = ends.after_waiver(self._listed(), End.NODE, name, {"uid": uid})
        if known is not None and known.get("uid") == uid and known.get(ends.WAIVERS) == value.get(ends.WAIVERS):
            return
        assert self._registry is not None  # events come after `compare`
        identity = self._registry.views[nodeidentity.PLURAL].get(name)
        reregisters = identity is not None and bool(spec_of(identity).get("reregisters"))
        moment = node["metadata"].get("deletionTimestamp") or rfc3339(self._clock.now())
        value |= {} if reregisters else {ends.DELETED_AT: moment, _RECORDED: identity is not None}
        self._set(End.NODE, name, ends.after_another(value, known))

    def _listed(self) -> Mapping[str, str]:
        """Return the entries of the ConfigMap of ends."""
        assert self._registry is not None  # events come after `compare`
        config_map = self._registry.views[ends.CONFIG_MAPS].get(ends.NAME, ends.NAMESPACE)
        return (config_map or {}).get("data") or {}

    def _note_secret(self, secret: Obj, is_deleted: bool) -> None:
        if secret["metadata"].get("namespace") != tokensecret.NAMESPACE or not is_token(secret):
            return
        name = secret["metadata"]["name"].removeprefix(tokensecret.NAME_PREFIX)
        uid = secret["metadata"]["uid"]
        is_deleted = is_deleted or bool(secret["metadata"].get("deletionTimestamp"))
        joins = ends.joins_of(secret)
        data = self._listed()
        counted = ends.after_waiver(data, End.JOINS, name, {"uid": uid, "joins": joins})
        self._set(End.JOINS, name, counted if joins and not is_deleted else None)
        if is_deleted:  # one that had expired, too: in an older store its end may be later
            expiry = expiration_of(secret)
            value = ends.after_waiver(
                data, End.TOKEN, name, {"uid": uid, **({"expiry": rfc3339(expiry)} if expiry else {})}
            )
            self._set(End.TOKEN, name, ends.after_another(value, self._ends.get(End.TOKEN, {}).get(name)))

    def _note_record(self, record: Obj, is_deleted: bool) -> None:
        found = checkpoint_of(record)
        if found is None or is_deleted or not self.is_settled:
            return
        if self._head is None or found.sequence > self._head.sequence:
            self._head = found
            self._changed.set()

    def _set(self, kind: End, name: str, value: Mapping[str, Any] | None) -> None:
        found = self._ends.setdefault(kind, {})
        before = found.pop(name, None)
        if value is not None:
            found[name] = value
            if len(found) > MAX_ENDS:
                now = rfc3339(self._clock.now())
                over = (one for one, end in found.items() if str(end.get("expiry", now)) < now)
                del found[next(over, next(iter(found)))]
        if value != before:
            self._changed.set()

    def _read_state(self) -> None:
        """Take over the revocations of the store, and compare the end of the lineage; a record that is missing stays as evidence.

        A revocation that an administrator took back while this server was stopped must not be remembered.
        """
        registry = self._registry
        assert registry is not None
        if not self.is_settled:
            return
        denylist = registry.views[certificaterevocation.PLURAL]
        known = self._ends.get(End.REVOCATION, {})
        lost = {name: known[name] for _, name in denylist.unreadable() if name in known}
        self._ends[End.REVOCATION] = {**lost, **{obj["metadata"]["name"]: _spec(obj) for obj in denylist.list()}}
        self._note_identities(registry)
        view, last = registry.views[lineagerecord.PLURAL], self._head
        if last is not None and not view.problem(record_name(last.sequence)):
            record = view.get(record_name(last.sequence))
            if record is None or checkpoint_of(record) != last:
                log.error(
                    "lineage records are missing or were changed: the store has no record %s; run mooring audit verify "
                    "--data-dir %s",
                    last,
                    self._directory,
                )
                self._evidence, self._head = (*self._evidence, last), None
        if self._head is None:
            for record in view.list():
                self._note_record(record, is_deleted=False)

    def _note_identities(self, registry: Registry) -> None:
        """Note which deleted Nodes have a NodeIdentity that says so: earlier versions did not."""
        for name, value in tuple(self._ends.get(End.NODE, {}).items()):
            identity = registry.views[nodeidentity.PLURAL].get(name)
            if ends.DELETED_AT in value and not value.get(_RECORDED) and identity is not None:
                self._ends[End.NODE][name] = {**value, _RECORDED: spec_of(identity).get("nodeUID") == value.get("uid")}

    async def write(self) -> None:
        """Write the mark, unless the file has it, another worker writes it, or the store is older and that is not settled."""
        registry = self._registry
        if registry is None or not self.is_settled or ends.refusal(registry.views) or not self._holds_lock():
            return
        assert self._storage is not None  # set with the registry
        try:
            keys = await self._shared_keys()
            restores = await read_restores(self._storage)
        except StorageError:
            return  # the store does not serve: nothing new is known
        if any(one.lost(self._mark.revision) for one in restores):
            self._is_older, self._has_revoked = True, False  # it was restored while this server ran
            self._made_again.clear()
            self._changed.set()
            return
        if keys["generation"]:
            value = {field: number for field, number in keys.items() if number}
            self._ends[End.SERVER_TOKEN] = {"keys": ends.after_waiver(self._listed(), End.SERVER_TOKEN, "keys", value)}
        mark = Mark(
            revision=max(registry.cache.revision, self._mark.revision),
            cluster=_cluster(registry) or self._mark.cluster,
            lineage=self._evidence if self._head is None else (*self._evidence, self._head),
            ends={kind: dict(found) for kind, found in self._ends.items() if found},
            server=self._mark.server or self._new_count(),
            witness=self._mark.witness,
        )
        if self._owes_witness or (mark.ends, mark.lineage) != (self._mark.ends, self._mark.lineage):
            try:
                server = mark.server if mark.server.endswith(self._server) else self._new_count()
                witness, revision = await add_witness(self._storage, server, mark.witness)
            except StorageError:
                return  # the store takes no writes now; what has ended is in it
            mark = replace(mark, server=server, witness=witness, revision=max(mark.revision, revision))
            self._owes_witness = False
        await asyncio.to_thread(self._write, mark)

    def _new_count(self) -> str:
        """Return a name for the count of this server. A copy of the data directory in another place counts for itself."""
        return secrets.token_hex(8) + self._server

    def _write(self, mark: Mark) -> None:
        with self._writing:
            text = mark.encode()
            if text == self._written:
                return
            try:
                write_atomic(self._path, text)
            except ConfigError as error:
                if not self._is_reported:
                    log.error("a store that is restored from an older copy will not be noticed: %s", error)
                self._is_reported = True
                return
            self._written, self._is_reported, self._mark = text, False, mark

    async def _shared_keys(self) -> dict[str, int]:
        """Return the `generation` of the keys in the store, and when its server token was made (`created`).

        Both are 0 when there are no keys, or when they cannot be read.
        """
        assert self._storage is not None
        entry = await self._storage.get(envelope.KEY)
        try:
            row = envelope.decode(entry.value) if entry is not None else None
        except ConfigError:
            row = None
        wraps = row.wraps if row is not None else ()
        return {"generation": row.generation if row is not None else 0, "created": wraps[0].created if wraps else 0}

    # -- the lock ----------------------------------------------------------------------------------------------------

    def _holds_lock(self) -> bool:
        """Return whether this process writes the mark of the directory; take the lock when no process has it."""
        if self._lock_file is not None:
            return True
        try:
            descriptor = open_lock(self._directory / LOCK_NAME)
        except ConfigError as error:
            if not self._is_reported:
                log.error("a store that is restored from an older copy will not be noticed: %s", error)
            self._is_reported = True
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError as error:
            os.close(descriptor)
            if not self._is_reported:
                problem = no_lock(self._directory / LOCK_NAME, error)
                log.error("a store that is restored from an older copy will not be noticed: %s", problem)
            self._is_reported = True
            return False
        try:
            self._take_over()
        except ConfigError as error:
            os.close(descriptor)
            if not self._is_reported:
                log.error("a store that is restored from an older copy will not be noticed: %s", error)
            self._is_reported = True
            return False
        self._lock_file = descriptor
        return True

    def _take_over(self) -> None:
        """Add what the process that wrote the mark before knows of tokens and Nodes that were deleted.

        Raises ConfigError when the file cannot be read now: a mark without them must not replace it.
        """
        try:
            known = read_mark(self._directory)
        except DamagedMarkError:
            return
        for kind in (End.TOKEN, End.NODE):
            self._ends[kind] = {**known.ends.get(kind, {}), **self._ends.get(kind, {})}
        self._mark = replace(
            self._mark,
            revision=max(self._mark.revision, known.revision),
            server=known.server,
            witness=max(self._mark.witness, known.witness),
        )

    def _release_lock(self) -> None:
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None


def _last(lineage: tuple[Checkpoint, ...]) -> Checkpoint | None:
    return lineage[-1] if lineage else None


def _is_terminating(event: Event) -> bool:
    return event.stored is not None and b'"deletionTimestamp"' in event.stored.raw and is_terminating(event.obj)


def _spec(revocation: Obj) -> Obj:
    """Return what a revocation says, without empty fields, and with known serial numbers only where it revokes all of them."""
    found = {name: value for name, value in spec_of(revocation).items() if value is not None}
    if not certificaterevocation.revokes_known(revocation):
        found.pop("knownSerialNumbers", None)
    return found


def _cluster(registry: Registry) -> str | None:
    """Return the uid that identifies the cluster; "" before its first boot, None when it cannot be read."""
    if registry.views["namespaces"].problem(KUBE_SYSTEM):
        return None
    namespace = registry.views["namespaces"].get(KUBE_SYSTEM)
    return str(namespace["metadata"].get("uid", "")) if namespace is not None else ""


def _is_older(mark: Mark, cluster: str | None, restores: tuple[Restore, ...]) -> bool:
    """Return whether the store is older than the mark, or is another one."""
    if mark.cluster and cluster is not None and cluster != mark.cluster:
        return True
    return any(one.lost(mark.revision) for one in restores)
