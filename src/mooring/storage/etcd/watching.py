"""Watches over one stream to etcd, and the leases of keys that expire."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from mooring.clock import Clock
from mooring.errors import StorageError
from mooring.storage import feed
from mooring.storage.contract import StoredChange
from mooring.storage.etcd import messages
from mooring.storage.etcd.connection import READ_SECONDS, EtcdConnection, EtcdEndpoint, deadline, refusal

# Leases of etcd, shared by the keys that are written within the same minute, as kube-apiserver shares them.

SHARED_SECONDS = 60
"""A lease serves the writes of so many seconds, and lives so much longer than the keys need."""
SHARED_KEYS = 1000
"""Keys of one lease: their deletion is one revision, which a watch delivers at once."""


@dataclass(slots=True)
class _Lease:
    number: int
    ends: float
    """On the monotonic clock."""
    keys: int = 0


class Leases:
    """The newest lease of each life time."""

    def __init__(self, connection: EtcdConnection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._newest: dict[int, _Lease] = {}
        self._granting = asyncio.Lock()

    async def lease(self, ttl: int, end: float) -> int:
        """Return the id of a lease that lives for `ttl` seconds or longer; 0 when `ttl` is 0.

        Raises StorageError when etcd has not granted one until `end` of the loop's clock, to this caller or to those before it.
        """
        if not ttl:
            return 0
        try:
            async with asyncio.timeout_at(min(end, deadline(READ_SECONDS))), self._granting:
                return await self._shared(ttl, end)
        except TimeoutError:
            raise StorageError("etcd cannot be reached: it grants no lease") from None

    async def _shared(self, ttl: int, end: float) -> int:
        now = self._clock.monotonic()
        found = self._newest.get(ttl)
        if found is None or found.ends < now + ttl or found.keys >= SHARED_KEYS:
            request = messages.LeaseGrantRequest(TTL=ttl + SHARED_SECONDS)
            response = await self._connection.call(messages.LEASE_GRANT, request, end=end)
            found = self._newest[ttl] = _Lease(response.ID, now + response.TTL)
        found.keys += 1
        return found.number

    def forget(self, number: int) -> None:
        """Forget a lease that etcd does not have any more."""
        self._newest = {ttl: lease for ttl, lease in self._newest.items() if lease.number != number}


# Watches over one stream to etcd.
#
# Rules kept here:
# * All watches of a process share one gRPC stream, and each has an id on it. When the stream breaks, every watch ends with an
#   error: its reader begins a new one after the last revision that it has seen.
# * Fragments of one response are put together: a batch has whole revisions.
# * A watch that its reader leaves unread beyond the bounds of `feed` is given up and begun again when the reader goes on.
# * Progress: a reader may wait for a revision that changed other keys only. etcd is asked for its progress then. Versions that
#   answer before changes are delivered (below 3.4.25 and 3.5.8; kube-apiserver does not trust them either) are not asked: their
#   watches cover all keys of etcd, and every change proves progress.

PROGRESS_FIRST_SECONDS = 0.003
"""Seconds until etcd is asked for progress: changes that are under way arrive within them."""
PROGRESS_AGAIN_SECONDS = 0.05
"""Seconds between two such requests while etcd does not answer: it stays silent until all watches of the stream are current."""
CREATE_SECONDS = 5.0
"""Deadline of the confirmation that a watch was created."""
_ALL = (b"\0", b"\0")

log = logging.getLogger(__name__)


def tells_progress(version: tuple[int, ...]) -> bool:
    """Return True for a version whose answer to a progress request comes after the changes that it covers."""
    return version >= (3, 5, 8) or (3, 4, 25) <= version < (3, 5)


class CompactedAtError(StorageError):
    """The start of a watch was compacted up to `revision`, a revision of etcd."""

    def __init__(self, revision: int) -> None:
        super().__init__("the start of the watch was compacted")
        self.revision = revision


class Watcher:
    """One watch on a stream. `position`: newest revision of etcd that was taken."""

    def __init__(self, span: tuple[bytes, bytes], position: int, decode: Callable[[Any], StoredChange]) -> None:
        self.span = span
        self.position = position
        self.created: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gave_up = False
        """True when more was left unread than may be held."""
        self._decode = decode
        self._fragments: list[Any] = []
        self._pending: list[StoredChange] = []
        self._pending_bytes = 0
        self._seen = position
        self._failure: StorageError | None = None
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def seen(self) -> int:
        """Newest revision of etcd up to which all changes have arrived."""
        return self._seen

    def push(self, events: Any, is_part: bool) -> None:
        """Add the events of one response; of parts of a response once the last has come."""
        if is_part or self._fragments:
            self._fragments.extend(events)
            if is_part:
                return
            events, self._fragments = self._fragments, []
        held, seen, (start, end) = len(self._pending), self._seen, self.span
        newest = seen
        for event in events:
            entry = event.kv
            # A watch begins at the revision that its reader has seen, so that etcd refuses it when that one is
            # compacted: a deletion at the compacted revision is never missed. The changes of that revision are left
            # out here.
            if entry.mod_revision <= seen:
                continue
            newest = entry.mod_revision
            if start <= entry.key and (end == b"\0" or entry.key < end):
                self._pending.append(self._decode(event))
                self._pending_bytes += len(entry.value)
        # A response alone is always taken, however large: else a watch that catches up would never get anywhere.
        if held and (len(self._pending) > feed.MAX_PENDING_CHANGES or self._pending_bytes > feed.MAX_PENDING_BYTES):
            self.gave_up = True
            self._pending, self._pending_bytes = [], 0
        self.progress(newest)

    def progress(self, revision: int) -> None:
        """Note that all changes up to `revision` have arrived."""
        if revision > self._seen:
            self._seen = revision
            self._wake()

    def fail(self, failure: StorageError) -> None:
        """End with an error, after the changes that have arrived."""
        self._failure = self._failure or failure
        if not self.created.done():
            self.created.set_exception(failure)
            # The subscriber may have gone. asyncio would log an error that no one has retrieved.
            self.created.exception()
        self._wake()

    def end(self) -> None:
        """End without an error, after the changes that have arrived."""
        self._ended = True
        self._wake()

    async def take(self, offset: int) -> tuple[StoredChange, ...]:
        """Return what has arrived, and wait for the first. Empty when the watch has ended or was given up.

        `offset` is added to the revision of a progress notification. Raises StorageError.
        """
        while not self.gave_up:
            if self._seen > self.position:
                batch, self._pending, self._pending_bytes = self._pending, [], 0
                if not batch or batch[-1].revision < self._seen + offset:
                    batch.append(StoredChange.progress(self._seen + offset))
                self.position = self._seen
                return tuple(batch)
            if self._failure is not None:
                raise self._failure
            if self._ended:
                break
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return ()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class WatchStream:
    """The stream of one process; it is opened with the first watch, and again after it broke."""

    def __init__(self, connection: EtcdConnection) -> None:
        self._connection = connection
        self._watchers: dict[int, Watcher] = {}
        self._next_id = 1
        self._call: Any = None
        self._endpoint: EtcdEndpoint | None = None
        self._reading: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._wanted = 0
        """Newest revision of etcd that a reader waits for."""
        self._asked: tuple[int, ...] | None = None
        """Ids of the watches that existed when progress was asked first since its last answer."""
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()

    @property
    def watched(self) -> bool:
        """True while there are watches."""
        return bool(self._watchers)

    @property
    def watches_all_keys(self) -> bool:
        """True when the member in use does not tell the progress of single watches."""
        return self._endpoint is not None and not tells_progress(self._endpoint.version)

    async def subscribe(self, watcher: Watcher) -> int:
        """Begin a watch and return its id. Raises StorageError."""
        async with self._opening:
            if self._call is None:
                await self._open()
            number = self._next_id
            self._next_id += 1
            # Registered before the request: the confirmation may come before the request has been awaited.
            self._watchers[number] = watcher
        assert self._endpoint is not None
        start, end = watcher.span if tells_progress(self._endpoint.version) else _ALL
        create = messages.WatchCreateRequest(
            key=start, range_end=end, start_revision=watcher.position, watch_id=number, fragment=True
        )
        try:
            await self._send(messages.WatchRequest(create_request=create))
            async with asyncio.timeout(CREATE_SECONDS):
                await asyncio.shield(watcher.created)
        except TimeoutError:
            self._break(StorageError(f"etcd at {self._endpoint.url} does not confirm a watch"))
            raise StorageError(f"etcd at {self._endpoint.url} does not confirm a watch") from None
        except BaseException:
            self.unsubscribe(number)
            raise
        return number

    def unsubscribe(self, number: int) -> None:
        """End a watch."""
        if self._watchers.pop(number, None) is not None and self._call is not None:
            cancel = messages.WatchCancelRequest(watch_id=number)
            self._send_later(messages.WatchRequest(cancel_request=cancel))

    def want(self, revision: int) -> None:
        """Ask etcd for its progress unless the changes up to `revision` arrive by themselves."""
        if revision > self._wanted:
            self._wanted = revision
            if self._timer is None and self._is_behind():
                self._start_timer(PROGRESS_FIRST_SECONDS)

    def _is_behind(self) -> bool:
        return any(watcher.seen < self._wanted for watcher in self._watchers.values())

    def _start_timer(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._ask_progress)

    def _ask_progress(self) -> None:
        self._timer = None
        if self._call is None or self._endpoint is None or not tells_progress(self._endpoint.version):
            return
        if self._is_behind():
            if self._asked is None:
                # Only the watches that etcd has confirmed are covered by its answer.
                self._asked = tuple(number for number, one in self._watchers.items() if one.created.done())
            self._send_later(messages.WatchRequest(progress_request=messages.WatchProgressRequest()))
            self._start_timer(PROGRESS_AGAIN_SECONDS)

    # -- the stream ------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        endpoint = self._connection.endpoint
        try:
            if not endpoint.version:
                await self._connection.ask_version(endpoint)
        except grpc.aio.AioRpcError:
            self._connection.leave(endpoint)
            raise StorageError(f"etcd at {endpoint.url} does not answer") from None
        # A channel that was closed begins no call.
        if endpoint is not self._connection.endpoint:
            raise StorageError(f"etcd at {endpoint.url} was left")
        self._endpoint = endpoint
        self._call = endpoint.watch(metadata=self._connection.metadata)
        self._asked = None
        self._reading = asyncio.get_running_loop().create_task(self._read(self._call), name="watches of etcd")

    async def _read(self, call: Any) -> None:
        failure = StorageError("etcd ended the watch")
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                self._receive(response)
        except grpc.aio.AioRpcError as error:
            failure = StorageError(f"the watch of etcd broke ({error.code().name})")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            failure = StorageError("the connection to etcd was replaced")
        finally:
            if self._call is call:
                self._break(failure)

    def _break(self, failure: StorageError) -> None:
        """Forget the stream; all watches end with `failure`."""
        call, self._call, self._asked, self._wanted = self._call, None, None, 0
        watchers, self._watchers = self._watchers, {}
        for watcher in watchers.values():
            watcher.fail(failure)
        if call is not None:
            call.cancel()

    def _receive(self, response: Any) -> None:
        watcher = self._watchers.get(response.watch_id)
        if response.canceled:
            self._receive_end(response)
        elif response.created:
            if watcher is not None and not watcher.created.done():
                watcher.created.set_result(None)
        elif response.events:
            if watcher is not None:
                watcher.push(response.events, response.fragment)
                if watcher.gave_up:
                    self.unsubscribe(response.watch_id)
        elif self._asked is not None:
            asked, self._asked = self._asked, None
            for number in asked:
                if number in self._watchers:
                    self._watchers[number].progress(response.header.revision)

    def _receive_end(self, response: Any) -> None:
        """End the watch that etcd ended. A refusal of one that a user may not begin may have no id: all unconfirmed ones end."""
        ended = [response.watch_id]
        if response.created and response.watch_id not in self._watchers:
            ended = [number for number, one in self._watchers.items() if not one.created.done()]
        for number in ended:
            watcher = self._watchers.pop(number, None)
            if watcher is not None:
                watcher.fail(
                    CompactedAtError(response.compact_revision)
                    if response.compact_revision
                    else refusal("etcd refused the watch", response.cancel_reason)
                )

    async def _send(self, request: Any) -> None:
        call = self._call
        async with self._writing:
            try:
                await call.write(request)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError, AttributeError):
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                raise StorageError("the watch of etcd broke") from None

    def _send_later(self, request: Any) -> None:
        async def send() -> None:
            with contextlib.suppress(StorageError):  # the reading task ends the watches
                await self._send(request)

        task = asyncio.get_running_loop().create_task(send())
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def fail_all(self, failure: StorageError) -> None:
        """End all watches with an error, and the stream."""
        self._break(failure)

    async def close(self) -> None:
        """End all watches, after the changes that have arrived, and the stream."""
        call, self._call = self._call, None
        watchers, self._watchers = self._watchers, {}
        for watcher in watchers.values():
            watcher.end()
        if self._timer is not None:
            self._timer.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if call is not None:
            call.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
