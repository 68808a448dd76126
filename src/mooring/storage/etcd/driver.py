"""The etcd storage driver: the contract over etcd's transactions, watches and leases.

Rules kept here:
* Callers of `revision` share round trips. That round trip reads the key of the revision offset. `advance` raises it. So
  does a server that finds etcd's history cut (restored from a snapshot: another cluster id, a lower term or revision): every
  revision that is shown afterwards is greater than all shown before, watches end as compacted, and caches read everything again.
* A write is one transaction that compares the revision of its key. When its outcome is unknown, an update or deletion is sent once
  more, and a creation is looked up. What stays unknown raises `UnknownOutcomeError`.
* Ranges are read in pages of bounded size, at one revision.
* A heartbeat notices within seconds that etcd fails (`problem`) or has raised an alarm (`alarm`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

from mooring.clock import Clock
from mooring.errors import StorageError, UnknownOutcomeError
from mooring.settings.storage import StorageSettings
from mooring.storage.contract import (
    CompactedError,
    Entry,
    FutureRevisionError,
    KeyExistsError,
    Page,
    RevisionMismatchError,
    StoreCounters,
    StoredChange,
)
from mooring.storage.etcd import messages
from mooring.storage.etcd.connection import (
    OUTCOME_SECONDS,
    READ_SECONDS,
    REMEDIES,
    RETRY_SECONDS,
    EtcdConnection,
    EtcdRefusedError,
    deadline,
)
from mooring.storage.etcd.keyspace import Keyspace
from mooring.storage.etcd.watching import CompactedAtError, Leases, Watcher, WatchStream
from mooring.storage.keyspace import RESTORES, check_key
from mooring.storage.restores import Restore, with_record

HEARTBEAT_SECONDS = 2.0
"""Seconds between two looks at etcd while no request reads: a member that hangs is left, and a restore is noticed."""
OBJECTS = "/registry/"
"""Prefix that a server watches."""
ALARM_BEATS = 5
"""Heartbeats between two looks at alarms."""
FILES_SECONDS = 5.0
"""Seconds between two looks at the files of certificates and of the password."""
PAGE_ENTRIES = 1000
"""Entries that are read at a time: their conversion keeps the loop thread for about 3 ms."""
COMPACT_REV_KEY = b"compact_rev_key"
"""Key by which kube-apiserver's processes agree on compactions; Mooring takes part."""

log = logging.getLogger(__name__)

_CLOSED = "the store is closed"


class EtcdStorage:
    """Implements `contract.Storage` on a cluster of etcd."""

    def __init__(self, servers: Sequence[str], settings: StorageSettings, clock: Clock) -> None:
        self._servers = tuple(servers)
        self._settings = settings
        self._clock = clock
        self._keys = Keyspace(settings.etcd_prefix)
        self._offset = 0
        """Difference between the revisions that are shown and those of etcd."""
        self._offset_revision = 0
        """Revision of etcd at which the key of the offset was written last; 0 while it does not exist."""
        self._cluster_id = 0
        self._term = 0
        self._newest = 0
        """Newest revision of etcd that a linearizable read has returned."""
        self._oldest = 1
        """A compacted revision of etcd: the oldest that can be read, or one before it."""
        self._compactions: int | None = None
        """Version of COMPACT_REV_KEY as this process knows it."""
        self._askers: list[asyncio.Future[int]] = []
        self._asking: asyncio.Task[None] | None = None
        self._loops: tuple[asyncio.Task[None], ...] = ()
        self._writes = 0
        self._idle = asyncio.Event()
        self._connection: EtcdConnection
        self._stream: WatchStream
        self._leases: Leases
        self._is_open = False
        self._restored = asyncio.Lock()
        self.problem = ""
        self.alarm = ""
        self.failed = asyncio.Event()
        self.counters = StoreCounters()

    @property
    def refuses_writes(self) -> bool:
        return bool(self.problem or self.alarm)  # etcd refuses writes with the alarms that it has, NOSPACE and CORRUPT

    # ---- opening and closing

    async def open(self) -> None:
        if self._is_open:
            return

        self._connection = EtcdConnection(self._settings, self._servers)
        self._stream = WatchStream(self._connection)
        try:
            status = await self._connection.open()
            self._leases = Leases(self._connection, self._clock)
            self._is_open = True
            self._writes = 0
            self._idle = asyncio.Event()
            self._idle.set()
            self._restored = asyncio.Lock()
            self._cluster_id, self._term, self._newest = status.header.cluster_id, 0, 0
            await self.revision()
            await self._check_watch()
        except BaseException:
            self._is_open = False
            await self._stream.close()
            await self._connection.close()
            raise
        loop = asyncio.get_running_loop()
        self._loops = (
            loop.create_task(self._beat(), name="heartbeat of etcd"),
            # A loop of its own: the heartbeat waits for answers of etcd, which may need the new credentials.
            loop.create_task(self._follow_files(), name="files for etcd"),
        )

    async def _check_watch(self) -> None:
        """Raise StorageError when the user may not watch. Other failures pass: the reader of a watch repeats it."""
        number = 0
        try:
            _, number = await self._begin_watch(self._keys.span(OBJECTS), self._newest)
        except EtcdRefusedError as error:
            if "permission denied" not in error.details:
                return
            if not self._stream.watches_all_keys:
                raise
            raise StorageError(
                "etcd denied the permission to watch: this version makes Mooring watch all keys; grant the user read on all "
                "keys (`etcdctl role grant-permission ROLE --prefix=true read ''`), or use etcd 3.4.25, 3.5.8 or later"
            ) from None
        except StorageError:
            return
        finally:
            self._stream.unsubscribe(number)

    async def close(self) -> None:
        if not self._is_open:
            return
        # New writes are refused before the wait, so that it ends.
        self._is_open = False
        await self._idle.wait()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        await self._stream.close()
        await self._connection.close()

    def _check_open(self) -> None:
        if not self._is_open:
            raise StorageError(_CLOSED)

    async def _beat(self) -> None:
        """Look after etcd until cancelled."""
        beats = 0
        while True:
            await self._clock.sleep(HEARTBEAT_SECONDS)
            problem = ""
            try:
                await self.revision()
                beats += 1
                if beats % ALARM_BEATS == 1:
                    await self._look_around()
            except StorageError as error:
                problem = str(error)
            except Exception as error:  # the heartbeat must go on
                problem = f"the heartbeat of etcd failed ({type(error).__name__})"
            if problem != self.problem:
                self.problem = problem
                log.log(logging.WARNING if problem else logging.INFO, "%s", problem or "etcd serves again")

    async def _follow_files(self) -> None:
        """Follow the files of credentials until cancelled."""
        while True:
            await self._clock.sleep(FILES_SECONDS)
            try:
                self._connection.follow_files()
            except Exception:  # the loop must go on
                log.exception("the files of credentials for etcd could not be followed")

    async def _look_around(self) -> None:
        """Look at the alarms of etcd. Raises StorageError."""
        response = await self._connection.call(messages.ALARM, messages.AlarmRequest())
        alarm = _alarms_in_words({member.alarm for member in response.alarms})
        if alarm != self.alarm:
            self.alarm = alarm
            log.log(logging.WARNING if alarm else logging.INFO, "%s", alarm or "the alarms of etcd are over")

    # ---- revisions

    async def revision(self) -> int:
        self._check_open()
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._askers.append(waiter)
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask_revision())
        try:
            async with asyncio.timeout(
                READ_SECONDS
            ):  # also the time of a caller that came during a round trip that fails
                return await waiter
        except TimeoutError:
            raise StorageError("etcd cannot be reached: it does not answer") from None

    async def _ask_revision(self) -> None:
        """Answer all callers of `revision`, in round trips that begin after their calls."""
        try:
            while self._askers:
                # Taken before the round trip: a call is answered by one that began after it.
                waiting, self._askers = self._askers, []
                try:
                    newest = await self._read_revision()
                except Exception as error:  # every caller must get a result
                    for waiter in waiting:
                        if not waiter.done():
                            waiter.set_exception(error)
                else:
                    for waiter in waiting:
                        if not waiter.done():
                            waiter.set_result(newest)
        finally:
            self._asking = None

    async def _read_revision(self) -> int:
        """Read the newest revision and the offset in one linearizable read. Returns the revision that is shown."""
        # The newest revision before the request: an answer to another one may raise it meanwhile.
        before = self._newest
        response = await self._connection.call(messages.RANGE, messages.RangeRequest(key=self._keys.offset_key))
        header = response.header
        if header.revision < before or header.cluster_id != self._cluster_id or header.raft_term < self._term:
            await self._take_up_restored_history(response)
            return self._newest + self._offset
        self._newest = max(self._newest, header.revision)
        self._term = header.raft_term
        written = response.kvs[0].mod_revision if response.kvs else 0
        if written != self._offset_revision:
            await self._set_offset(response)
        # Callers wait until the watches reach this revision.
        self._stream.want(header.revision)
        return int(header.revision) + self._offset

    async def _set_offset(self, response: Any) -> None:
        """Show revisions with the offset that is stored. Watches whose revisions it changes end as compacted."""
        kvs = response.kvs
        offset = int(kvs[0].value) if kvs else 0
        self._offset_revision = kvs[0].mod_revision if kvs else 0
        if offset != self._offset:
            self._offset = offset
            self._stream.fail_all(CompactedError(self._newest + offset))

    async def _take_up_restored_history(self, response: Any) -> None:
        """Raise the offset beyond every revision that was shown, unless another server has done so already."""
        log.error(
            "etcd was restored from a snapshot, or is another cluster: writes after the snapshot are lost; reading everything again"
        )
        shown = self._newest + self._offset
        saved = int(response.header.revision) + (int(response.kvs[0].value) if response.kvs else 0)
        # Before the record, whose revision is below those that were shown.
        self._stream.fail_all(CompactedError(shown))
        if saved < shown:
            # Before the offset: after a failure the next look does all again.
            await self._record_restore(Restore(saved, shown))
            response = await self._connection.call(messages.RANGE, messages.RangeRequest(key=self._keys.offset_key))
        for _ in range(10):
            header, kvs = response.header, response.kvs
            written = kvs[0].mod_revision if kvs else 0
            stored = int(kvs[0].value) if kvs else 0
            self._cluster_id, self._term, self._newest = header.cluster_id, header.raft_term, header.revision
            self._oldest = 1
            self._compactions = None
            # Other servers may have written the key meanwhile.
            self._offset_revision = -1
            if stored >= shown:
                await self._set_offset(response)
                break
            value = b"%d" % (shown)
            await self._connection.call(messages.TXN, _put_if(self._keys.offset_key, written, value))
            response = await self._connection.call(messages.RANGE, messages.RangeRequest(key=self._keys.offset_key))
        # The restored etcd does not have the leases that were granted after the snapshot.
        self._leases = Leases(self._connection, self._clock)

    async def _record_restore(self, restore: Restore) -> None:
        """Add the record. Raises StorageError when another server writes one. Nothing here may ask for the revision."""
        key = self._keys.encode(RESTORES)
        response = await self._connection.call(messages.RANGE, messages.RangeRequest(key=key))
        value, written = (response.kvs[0].value, response.kvs[0].mod_revision) if response.kvs else (None, 0)
        wanted = with_record(value, restore)
        if wanted != value:
            answer = await self._connection.call(messages.TXN, _put_if(key, written, wanted))
            if not answer.succeeded:
                raise StorageError("another server records the restore of etcd at the same time")

    async def advance(self, revision: int) -> None:
        newest = await self.revision()
        if revision <= newest:
            await self.compact(revision)
            return
        offset = self._offset + revision - newest
        request = _put_if(self._keys.offset_key, self._offset_revision, b"%d" % offset)
        response = await self._connection.write(request)
        if not response.succeeded:
            raise StorageError("the revisions of etcd were advanced by another process meanwhile; try again")
        await self.compact(await self.revision())

    async def compacted(self) -> int:
        self._check_open()
        probe = messages.RangeRequest(key=self._keys.offset_key, revision=self._oldest, count_only=True)
        try:
            await self._connection.call(messages.RANGE, probe)
        except EtcdRefusedError as error:
            if "has been compacted" not in error.details:
                raise
            self._oldest = await self._find_oldest()
        return max(self._oldest + self._offset, 1)

    async def _find_oldest(self) -> int:
        """Return the oldest revision of etcd that can be read: a watch from the first revision on is told it."""
        number = 0
        try:
            watcher, number = await self._begin_watch((self._keys.offset_key, self._keys.offset_key + b"\0"), 1)
            while True:
                await watcher.take(0)
        except CompactedAtError as error:
            return error.revision
        finally:
            self._stream.unsubscribe(number)

    async def verify(self) -> None:
        self._check_open()  # etcd has checksums of its own

    async def claim_compaction(self, revision: int) -> bool:
        self._check_open()
        if self._compactions is None:
            found = await self._connection.call(messages.RANGE, messages.RangeRequest(key=COMPACT_REV_KEY))
            self._compactions = found.kvs[0].version if found.kvs else 0
        request = _put_if(COMPACT_REV_KEY, 0, b"%d" % (revision - self._offset))
        request.compare[0].target = messages.VERSION
        request.compare[0].ClearField("mod_revision")
        request.compare[0].version = self._compactions
        response = await self._connection.write(request)
        if response.succeeded:
            self._compactions += 1
            return True
        kvs = response.responses[0].response_range.kvs
        self._compactions = kvs[0].version if kvs else 0
        return False

    async def compact(self, revision: int) -> None:
        newest = await self.revision()
        if revision > newest:
            raise FutureRevisionError(newest)
        at = revision - self._offset
        if at < 1:
            return
        try:
            await self._connection.call(messages.COMPACT, messages.CompactionRequest(revision=at))
        except EtcdRefusedError as error:
            if "has been compacted" not in error.details:
                raise
        else:
            self._oldest = max(self._oldest, at)

    # ---- reading

    async def get(self, key: str, *, revision: int = 0) -> Entry | None:
        check_key(key)
        name = self._keys.encode(key)
        response = await self._range(name, b"", 1, revision)
        return self._entry(response.kvs[0]) if response.kvs else None

    async def range(
        self, prefix: str, *, after: str = "", limit: int = 0, revision: int = 0, counted: bool = True
    ) -> Page:
        self._check_open()
        start, end = self._keys.span(prefix, after)
        entries: list[Entry] = []
        while True:
            wanted = min(limit - len(entries), PAGE_ENTRIES) if limit else PAGE_ENTRIES
            response = await self._range(start, end, wanted, revision)
            # All later pages are read at the revision of the first.
            revision = revision or int(response.header.revision) + self._offset
            entries += map(self._entry, response.kvs)
            if not response.more:
                return Page(tuple(entries), revision)
            if limit and len(entries) >= limit:
                remaining = response.count - len(response.kvs) if counted else 0
                return Page(tuple(entries), revision, more=True, remaining=remaining)
            start = response.kvs[-1].key + b"\0"

    async def _range(self, start: bytes, stop: bytes, limit: int, revision: int, end: float = math.inf) -> Any:
        """Read entries now, or at a revision that is shown, until `end` of the loop's clock at the latest.

        Raises CompactedError, FutureRevisionError.
        """
        self._check_open()
        at = revision - self._offset if revision else 0
        if revision and at < 1:
            raise CompactedError(await self.compacted())
        request = messages.RangeRequest(key=start, range_end=stop, limit=limit, revision=at)
        before = self._newest
        try:
            if stop:
                response = await self._connection.call_large(messages.RANGE, request)
            else:
                response = await self._connection.call(messages.RANGE, request, end=end)
            await self._note(before, response)
            return response
        except EtcdRefusedError as error:
            if "has been compacted" in error.details:
                raise CompactedError(await self.compacted()) from None
            if "future revision" in error.details:
                raise FutureRevisionError(await self.revision()) from None
            raise

    async def _note(self, before: int, response: Any) -> None:
        """Note the newest revision of an answer. One older than `before`, known when it was asked for, is of a restored etcd."""
        if response.header.revision < before:
            await self.revision()
        elif response.header.revision > self._newest:
            self._newest = response.header.revision

    def _entry(self, kv: Any) -> Entry:
        offset = self._offset
        return Entry(self._keys.decode(kv.key), kv.value, kv.mod_revision + offset, kv.create_revision + offset)

    # ---- writing

    async def create(self, key: str, value: bytes, *, ttl: int = 0) -> Entry:
        name = self._checked(key)
        end = deadline(OUTCOME_SECONDS)
        response = await self._write(name, 0, value, ttl, end)
        if response is None:
            # Not sent again: a key that was deleted meanwhile would come back.
            return await self._look_up(key, value, end)
        if isinstance(response, Entry):
            return response
        if response.succeeded:
            revision = response.header.revision + self._offset
            return Entry(key, value, revision, revision)
        current = self._current(response)
        if current is None:  # not possible: the comparison and the read are one transaction
            raise StorageError("etcd gave a contradictory answer; try again")
        raise KeyExistsError(current)

    async def update(self, key: str, value: bytes, *, expected: int, ttl: int = 0) -> Entry:
        name = self._checked(key)
        at = expected - self._offset
        if at < 1:
            raise RevisionMismatchError(await self.get(key))
        end = deadline(OUTCOME_SECONDS)
        response = await self._write(name, at, value, ttl, end)
        if response is None:
            # Sent again it cannot be carried out twice, because a revision is given once.
            response = await self._write_again(name, at, value, ttl, end)
            if not isinstance(response, Entry) and not response.succeeded:
                current = self._current(response)
                # The first attempt was carried out, and the second has met its result.
                if current is not None and current.value == value and current.revision > expected:
                    return current
                raise UnknownOutcomeError(
                    "the connection to etcd was lost during the write, and the key has changed since"
                )
        if isinstance(response, Entry):
            return response
        if not response.succeeded:
            raise RevisionMismatchError(self._current(response))
        created = response.responses[0].response_range.kvs[0].create_revision
        return Entry(key, value, response.header.revision + self._offset, created + self._offset)

    async def delete(self, key: str, *, expected: int) -> int:
        name = self._checked(key)
        at = expected - self._offset
        if at < 1:
            raise RevisionMismatchError(await self.get(key))
        end = deadline(OUTCOME_SECONDS)
        response = await self._write(name, at, None, 0, end)
        if response is None:
            response = await self._write_again(name, at, None, 0, end)
            if not response.succeeded:
                raise UnknownOutcomeError(
                    "the connection to etcd was lost during the write, and the key has changed since"
                )
        if not response.succeeded:
            raise RevisionMismatchError(self._current(response))
        return int(response.header.revision) + self._offset

    def _checked(self, key: str) -> bytes:
        check_key(key)
        self._check_open()
        return self._keys.encode(key)

    async def _write(self, name: bytes, at: int, value: bytes | None, ttl: int, end: float) -> Any:
        """Write a key that is at revision `at` of etcd (0: absent); None deletes it. Return None for an unknown outcome.

        Return the entry instead of an answer when etcd has refused the write, and stored it.
        `end`: time of the loop's clock at which the operation has had its time.
        """
        self._writes += 1
        self._idle.clear()
        try:
            for _ in range(2):
                lease = await self._leases.lease(ttl, end)
                before = self._newest
                try:
                    response = await self._connection.write(_transaction(name, at, value, lease), end=end)
                    await self._note(before, response)
                    return response
                except EtcdRefusedError as error:
                    if error.is_for_space:
                        # etcd carries out the write by which it notices that its database is full, and answers it
                        # with NOSPACE as those after it.
                        return await self._stored_without_space(name, at, value, error, end)
                    if not lease or "requested lease not found" not in error.details:
                        raise
                    self._leases.forget(lease)
                except UnknownOutcomeError as error:
                    log.warning("%s", error)
                    return None
            raise StorageError("etcd forgets its leases at once; is its clock right?")
        finally:
            self._writes -= 1
            if not self._writes:
                self._idle.set()

    async def _stored_without_space(
        self, name: bytes, at: int, value: bytes | None, error: EtcdRefusedError, end: float
    ) -> Entry:
        """Return the entry of a write that etcd answered with NOSPACE, and stored.

        Raises the error when the write is not stored, and UnknownOutcomeError when that cannot be told.
        """
        unknown = UnknownOutcomeError(f"{error}; the write may or may not be stored")
        try:
            response = await self._range(name, b"", 1, 0, end)
        except StorageError:
            raise unknown from None
        found = response.kvs[0] if response.kvs else None
        if (found.mod_revision if found is not None else 0) == at:
            raise error
        if found is not None and found.value == value and (at or found.create_revision == found.mod_revision):
            return self._entry(found)
        raise unknown

    async def _write_again(self, name: bytes, at: int, value: bytes | None, ttl: int, end: float) -> Any:
        """Send a write of unknown outcome again: of the two, one at most is carried out. Raises UnknownOutcomeError."""
        response = None
        if deadline(RETRY_SECONDS) < end:
            with contextlib.suppress(StorageError):  # the second may be refused, and the first be stored
                response = await self._write(name, at, value, ttl, end)
        if response is None:
            raise UnknownOutcomeError("the connection to etcd was lost during a write; it may or may not be stored")
        return response

    async def _look_up(self, key: str, value: bytes, end: float) -> Entry:
        """Return the entry that a creation of unknown outcome has made. Raises UnknownOutcomeError."""
        with contextlib.suppress(StorageError):
            response = await self._range(self._keys.encode(key), b"", 1, 0, end)
            found = self._entry(response.kvs[0]) if response.kvs else None
            if found is not None and found.value == value and found.created == found.revision:
                return found
        raise UnknownOutcomeError("the connection to etcd was lost during a write; it may or may not be stored")

    def _current(self, response: Any) -> Entry | None:
        kvs = response.responses[0].response_range.kvs
        return self._entry(kvs[0]) if kvs else None

    # ---- watching

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[tuple[StoredChange, ...]]:
        self._check_open()
        return self._watch(self._keys.span(prefix), max(after, 1))

    async def _watch(self, span: tuple[bytes, bytes], after: int) -> AsyncIterator[tuple[StoredChange, ...]]:
        offset = self._offset
        position = after - offset
        if position < 1:
            raise CompactedError(await self.compacted())
        while True:
            number = 0
            try:
                self._check_open()
                watcher, number = await self._begin_watch(span, position)
                while batch := await watcher.take(offset):
                    position = watcher.position
                    yield batch
            except CompactedAtError as error:
                self._oldest = max(self._oldest, error.revision)
                raise CompactedError(error.revision + self._offset) from None
            finally:
                self._stream.unsubscribe(number)
            if not watcher.gave_up:
                return

    async def _begin_watch(self, span: tuple[bytes, bytes], position: int) -> tuple[Watcher, int]:
        """Begin a watch on the stream, which has the token of its own beginning: on another stream when that has expired."""
        watcher = self._watcher(span, position)
        try:
            return watcher, await self._stream.subscribe(watcher)
        except EtcdRefusedError as error:
            if not error.is_for_the_token:
                raise
        self._stream.fail_all(StorageError("the token of the watches of etcd has expired"))
        await self._connection.renew_token()
        watcher = self._watcher(span, position)
        return watcher, await self._stream.subscribe(watcher)

    def _watcher(self, span: tuple[bytes, bytes], position: int) -> Watcher:
        return Watcher(span, position, self._change)

    def _change(self, event: Any) -> StoredChange:
        kv = event.kv
        if event.type:
            return StoredChange(self._keys.decode(kv.key), kv.mod_revision + self._offset, None)
        entry = self._entry(kv)
        return StoredChange(entry.key, entry.revision, entry)


def _transaction(name: bytes, at: int, value: bytes | None, lease: int) -> Any:
    """Return the transaction that writes a key if it is at revision `at`, and else reads it."""

    read = messages.RequestOp(request_range=messages.RangeRequest(key=name))
    compare = messages.Compare(target=messages.MOD_REVISION, key=name, mod_revision=at)
    if value is None:
        success = [messages.RequestOp(request_delete_range=messages.DeleteRangeRequest(key=name))]
    else:
        success = [
            messages.RequestOp(request_put=messages.PutRequest(key=name, value=value, lease=lease)),
        ]
        if at:  # for the revision of creation
            success.insert(0, messages.RequestOp(request_range=messages.RangeRequest(key=name, keys_only=True)))
    return messages.TxnRequest(compare=[compare], success=success, failure=[read])


def _put_if(name: bytes, at: int, value: bytes) -> Any:
    return _transaction(name, at, value, 0)


def _alarms_in_words(alarms: set[int]) -> str:

    if messages.CORRUPT in alarms:
        return f"etcd has raised an alarm: {REMEDIES['corrupt cluster']}"
    if messages.NOSPACE in alarms:
        return f"etcd has raised an alarm: {REMEDIES['database space exceeded']}"
    return f"etcd has raised the alarms {sorted(alarms)}; see `etcdctl alarm list`" if alarms else ""
