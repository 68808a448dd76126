"""Store that encrypts values around any driver: plain values above, encrypted ones below.

Rules kept here:
* The providers of a resource decide on its values. Keys that belong to no resource of this server pass unchanged.
* The cipher authenticates the storage key (`mooring.trust.encryption.encryptedobject`) by its name in the engine:
  kube-apiserver authenticates the name with the prefix of --etcd-prefix. A value from a store with the default prefix is read, and
  is stale.
* A value that no key decrypts is an `UnreadableEntry`: its neighbours, the list and the watch go on.
* A value that this process wrote is not decrypted when it comes back in a watch.
* A watch waits for a KMS plugin at most PATIENCE_SECONDS, and not at all while a value is late: it feeds the views of every
  kind. A value that is not decrypted by then is passed on as an `UnreadableEntry`. Once the plugin has decrypted it, the
  subscribers of `Providers` are called, and read it again.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mooring.storage.contract import (
    Entry,
    KeyExistsError,
    Page,
    RevisionMismatchError,
    Storage,
    StoreCounters,
    StoredChange,
    UnreadableEntry,
)
from mooring.storage.encryption.providers import Providers
from mooring.storage.keyspace import check_key
from mooring.trust.encryption.configuration import GroupResource
from mooring.trust.encryption.encryptedobject import ENCRYPTED
from mooring.trust.encryption.transformer import UnreadableError, written_by

PATIENCE_SECONDS = 0.5
"""Time for which a watch waits for a KMS plugin: longer than a healthy one takes, and shorter than the age that views may have."""
LATE = "the KMS plugin has not decrypted the data key yet"
SLICE_BYTES = 1 << 20
SLICE_ENTRIES = 256
"""Bytes or entries that are decrypted before other work runs: about 5 ms."""
RECENT_ENTRIES = 256
RECENT_BYTES = 16 << 20
"""Own writes that are remembered until the watch has them."""
USAGE_PAGE = 500
"""Entries read at a time for a report."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Values of one resource: their number by provider and key, and how many are stale or unreadable."""

    resource: GroupResource
    writes: str
    """Provider and key that write now."""
    values: Mapping[str, int]
    stale: int
    unreadable: int


class _RecentWrites:
    """Sealed and plain values of this process's own writes, by key."""

    def __init__(self) -> None:
        self._writes: OrderedDict[str, tuple[bytes, bytes]] = OrderedDict()
        self._size = 0

    def add(self, key: str, sealed: bytes, plain: bytes) -> None:
        self.take(key)
        self._writes[key] = (sealed, plain)
        self._size += len(plain)
        while len(self._writes) > RECENT_ENTRIES or self._size > RECENT_BYTES:
            _, (_, dropped) = self._writes.popitem(last=False)
            self._size -= len(dropped)

    def take(self, key: str, sealed: bytes | None = None) -> bytes | None:
        """Remove and return the plain value of `sealed`; without it, of any write to the key."""
        found = self._writes.get(key)
        if found is None or (sealed is not None and found[0] != sealed):
            return None
        del self._writes[key]
        self._size -= len(found[1])
        return found[1]


class EncryptedStorage:
    """Implements `contract.Storage` over another store."""

    def __init__(
        self,
        inner: Storage,
        providers: Providers,
        resources: Mapping[str, GroupResource],
        context: Callable[[str], bytes] = str.encode,
    ) -> None:
        """`resources`: those of this server, by the prefix of their storage keys without a trailing slash.

        `context` returns the name of a key in the engine.
        """
        self.inner = inner
        self.providers = providers
        self._resources = resources
        self._context = context
        self._recent = _RecentWrites()
        self._late: set[asyncio.Task[Entry]] = set()
        """Values of changes that were passed on as unreadable, and that a plugin is decrypting."""
        self._is_readable_again = False
        # called for every read: nothing to do here
        self.revision = inner.revision
        self.compacted = inner.compacted
        self.claim_compaction = inner.claim_compaction
        self.compact = inner.compact
        self.advance = inner.advance
        self.verify = inner.verify

    @property
    def failed(self) -> asyncio.Event:
        return self.inner.failed

    @property
    def counters(self) -> StoreCounters:
        return self.inner.counters

    @property
    def problem(self) -> str:
        return self.inner.problem

    @property
    def alarm(self) -> str:
        return self.inner.alarm

    @property
    def refuses_writes(self) -> bool:
        return self.inner.refuses_writes

    def resource_of(self, key: str) -> GroupResource | None:
        """Return the resource of a storage key, None for one that this server does not have."""
        path, _, _ = key.rpartition("/")
        return self._resources.get(path) or self._resources.get(path.rpartition("/")[0])

    # -- opening and closing -------------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self.inner.open()
        try:
            await self.providers.start()
        except BaseException:
            await self.inner.close()
            raise

    async def close(self) -> None:
        # Tasks first: they use the plugins, which are stopped last.
        late = tuple(self._late)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        await self.inner.close()
        await self.providers.stop()

    # -- reading -------------------------------------------------------------------------------------------------------

    async def get(self, key: str, *, revision: int = 0) -> Entry | None:
        entry = await self.inner.get(key, revision=revision)
        return await self._opened(entry) if entry is not None else None

    async def range(
        self, prefix: str, *, after: str = "", limit: int = 0, revision: int = 0, counted: bool = True
    ) -> Page:
        page = await self.inner.range(prefix, after=after, limit=limit, revision=revision, counted=counted)
        entries: list[Entry] = []
        size = 0
        for place, entry in enumerate(page.entries, 1):
            entries.append(await self._opened(entry))
            size += len(entry.value)
            if size > SLICE_BYTES or not place % SLICE_ENTRIES:
                size = 0
                # 5 ms of decryption at a time, so that other requests go on.
                await asyncio.sleep(0)
        return replace(page, entries=tuple(entries))

    async def _opened(self, entry: Entry) -> Entry:
        """Return the entry with its plain value, or an UnreadableEntry."""
        opened = self._opened_now(entry)
        if opened is not None:
            return opened
        resource = self.resource_of(entry.key)
        assert resource is not None  # else there is nothing to decrypt
        try:
            plain, _ = await self._plain(resource, entry)
        except UnreadableError as error:
            return UnreadableEntry(entry.key, b"", entry.revision, entry.created, str(error))
        return Entry(entry.key, plain, entry.revision, entry.created)

    def _opened_now(self, entry: Entry) -> Entry | None:
        """Return what `_opened` does; None when a plugin has to decrypt a data key first."""
        # Its bytes have changed in the store.
        if isinstance(entry, UnreadableEntry):
            return entry
        if not self.providers.encrypts and not entry.value.startswith(ENCRYPTED):
            return entry
        resource = self.resource_of(entry.key)
        if resource is None:
            return entry
        try:
            found = self._plain_now(resource, entry)
        except UnreadableError as error:
            return UnreadableEntry(entry.key, b"", entry.revision, entry.created, str(error))
        if found is None:
            return None
        plain = found[0]
        return entry if plain is entry.value else Entry(entry.key, plain, entry.revision, entry.created)

    def _plain_now(self, resource: GroupResource, entry: Entry) -> tuple[bytes, bool] | None:
        """Return what `_plain` does; None when a plugin has to decrypt a data key first. Raises UnreadableError."""
        # kube-apiserver authenticates the name of the key with its --etcd-prefix. A value that was copied from a
        # store with the default prefix has the other name, and is stale.
        context, moved_from = self._context(entry.key), entry.key.encode()
        try:
            return self.providers.open_now(resource, entry.value, context)
        except UnreadableError:
            if context == moved_from:
                raise
        found = self.providers.open_now(resource, entry.value, moved_from)
        return (found[0], True) if found is not None else None

    async def _plain(self, resource: GroupResource, entry: Entry) -> tuple[bytes, bool]:
        """Return the plain value, and whether it is stale. Raises UnreadableError."""
        context = self._context(entry.key)
        try:
            found = self.providers.open_now(resource, entry.value, context)
            return found if found is not None else await self.providers.open(resource, entry.value, context)
        except UnreadableError:
            moved_from = entry.key.encode()
            if context == moved_from:
                raise
        return (await self.providers.open(resource, entry.value, moved_from))[0], True

    # -- watching ------------------------------------------------------------------------------------------------------

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[tuple[StoredChange, ...]]:
        return self._opened_changes(self.inner.watch(prefix, after=after))

    async def _opened_changes(
        self, batches: AsyncIterator[tuple[StoredChange, ...]]
    ) -> AsyncIterator[tuple[StoredChange, ...]]:
        try:
            async for batch in batches:
                yield await self._opened_batch(batch)
        finally:
            # Closed now, and not by the garbage collector: the watch below ends with its reader.
            if isinstance(batches, AsyncGenerator):
                await batches.aclose()

    async def _opened_batch(self, batch: Sequence[StoredChange]) -> tuple[StoredChange, ...]:
        changes = list(batch)
        waiting: dict[int, asyncio.Task[Entry]] = {}
        for place, change in enumerate(batch):
            entry = change.entry
            if entry is None:
                continue
            plain = self._recent.take(change.key, entry.value)
            opened = self._opened_now(entry) if plain is None else replace(entry, value=plain)
            if opened is None:
                waiting[place] = asyncio.get_running_loop().create_task(self._opened(entry))
            elif opened is not entry:
                changes[place] = replace(change, entry=opened)
        if waiting:
            await self._wait_for_plugins(tuple(waiting.values()))
            for place, task in waiting.items():
                changes[place] = replace(batch[place], entry=self._result(batch[place], task))
        return tuple(changes)

    async def _wait_for_plugins(self, tasks: Sequence[asyncio.Task[Entry]]) -> None:
        """Return once all are done, or patience is at its end: at once while the plugins keep another value waiting."""
        # While another value is late, the plugin does not answer: a second wait would let the views grow too old.
        timer = asyncio.ensure_future(self.providers.clock.sleep(0 if self._late else PATIENCE_SECONDS))
        every = asyncio.gather(*tasks, return_exceptions=True)
        try:
            await asyncio.wait((every, timer), return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            # The reader of the watch has gone. Else the tasks go on, and their values are read when they arrive.
            every.cancel()
            raise
        finally:
            timer.cancel()

    def _result(self, change: StoredChange, task: asyncio.Task[Entry]) -> Entry:
        """Return the entry of a task that is done; else an UnreadableEntry, and the task goes on."""
        if task.done():
            return task.result()
        entry = change.entry
        assert entry is not None  # there is nothing to decrypt in a deletion
        self._late.add(task)
        task.add_done_callback(self._arrived)
        return UnreadableEntry(entry.key, b"", entry.revision, entry.created, LATE)

    def _arrived(self, task: asyncio.Task[Entry]) -> None:
        """Have late values read again, once for all that arrive together. Those that failed are asked for by `Providers`."""
        self._late.discard(task)
        if not task.cancelled() and task.exception() is None and not isinstance(task.result(), UnreadableEntry):
            self._is_readable_again = True
        if self._is_readable_again and not self._late:
            self._is_readable_again = False
            self.providers.notify()

    # -- writing -------------------------------------------------------------------------------------------------------

    async def create(self, key: str, value: bytes, *, ttl: int = 0) -> Entry:
        # Sealed before the store is called: a value that cannot be encrypted is never stored.
        sealed = self._sealed(key, value)
        try:
            entry = await self.inner.create(key, sealed, ttl=ttl)
        except KeyExistsError as error:
            raise KeyExistsError(await self._opened(error.current)) from None
        return replace(entry, value=value)

    async def update(self, key: str, value: bytes, *, expected: int, ttl: int = 0) -> Entry:
        sealed = self._sealed(key, value)
        try:
            entry = await self.inner.update(key, sealed, expected=expected, ttl=ttl)
        except RevisionMismatchError as error:
            raise await self._mismatch(error) from None
        return replace(entry, value=value)

    async def delete(self, key: str, *, expected: int) -> int:
        try:
            return await self.inner.delete(key, expected=expected)
        except RevisionMismatchError as error:
            raise await self._mismatch(error) from None

    async def _mismatch(self, error: RevisionMismatchError) -> RevisionMismatchError:
        return RevisionMismatchError(await self._opened(error.current) if error.current is not None else None)

    def _sealed(self, key: str, value: bytes) -> bytes:
        check_key(key)
        resource = self.resource_of(key)
        if resource is None:
            return value
        sealed = self.providers.seal(resource, value, self._context(key))
        # Remembered before the write: its change may reach the watch before this call returns.
        if sealed is not value:
            self._recent.add(key, sealed, value)
        return sealed

    # -- keys in use ---------------------------------------------------------------------------------------------------

    async def is_stale(self, key: str) -> bool:
        """Return whether another key than the one that writes now has written the value."""
        resource = self.resource_of(key)
        if resource is None or not self.providers.is_configured(resource):
            return False
        entry = await self.inner.get(key)
        if entry is None or isinstance(entry, UnreadableEntry):
            return False
        try:
            return (await self._plain(resource, entry))[1]
        except UnreadableError:
            return False

    async def usage(self) -> tuple[Usage, ...]:
        """Return the usage of each resource that is encrypted, or has encrypted values."""
        found: list[Usage] = []
        for prefix, resource in sorted(self._resources.items(), key=lambda pair: pair[1]):
            one = await self._usage_of(prefix, resource)
            if self.providers.is_configured(resource) or one.unreadable:
                found.append(one)
        return tuple(found)

    async def _usage_of(self, prefix: str, resource: GroupResource) -> Usage:
        values: Counter[str] = Counter()
        stale = unreadable = 0
        after, more = "", True
        while more:
            page = await self.inner.range(f"{prefix}/", after=after, limit=USAGE_PAGE, counted=False)
            for entry in page.entries:
                if isinstance(entry, UnreadableEntry):
                    unreadable += 1
                    continue
                values[written_by(entry.value)] += 1
                try:
                    stale += (await self._plain(resource, entry))[1]
                except UnreadableError:
                    unreadable += 1
            more = page.more
            after = page.entries[-1].key if page.entries else ""
            await asyncio.sleep(0)
        return Usage(resource, self.providers.transformer(resource).label, dict(values), stale, unreadable)
