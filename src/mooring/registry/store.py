"""`Registry`: the one way objects of every kind are read and changed (law 6), for HTTP, controllers and commands.

Rules kept here:
* This file assembles the parts: reading is `mooring.registry.reader`, writing `mooring.registry.write.writer`, memory
  `mooring.registry.cache.watchcache`.
* Inside the registry, objects have the form in which they are stored. Storage conversion of kinds with an alias happens here and
  nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from mooring.api.kind import Change, Kind
from mooring.api.view import Views
from mooring.apimachinery.options import DeleteOptions, ListOptions, WriteOptions
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Authorize
from mooring.clock import Clock
from mooring.registry.admission.request import Admission, AdmissionRequest
from mooring.registry.cache.kindcache import Sink, Watch
from mooring.registry.cache.slices import slices
from mooring.registry.cache.stored import Stored
from mooring.registry.cache.views import cache_views
from mooring.registry.cache.watchcache import WatchCache
from mooring.registry.longwork import LongWork
from mooring.registry.reader import ListPage, RegistryReader
from mooring.registry.write.deletionrecords import DeletionRecord, deletion_records
from mooring.registry.write.serverwrites import Observe, ignore
from mooring.registry.write.writer import Deleted, Entropy, IsStale, RegistryWriter
from mooring.storage.contract import Storage


async def _never_stale(key: str) -> bool:
    return False


class Registry:
    """All stored objects of every kind. Start it once in a process, on an open storage."""

    def __init__(
        self,
        storage: Storage,
        kinds: Sequence[Kind],
        clock: Clock,
        entropy: Entropy,
        admission: Sequence[Admission],
        authorize: Authorize,
        records: Mapping[str, DeletionRecord] | None = None,
        is_stale: IsStale = _never_stale,
        observe: Observe = ignore,
    ) -> None:
        """`is_stale`: see `mooring.registry.write.writer.IsStale`. `observe` is called with each write of the server itself."""
        self.cache = WatchCache(storage, kinds, clock)
        self.views: Views = cache_views(self.cache.kinds)
        """Read-only views of every kind, by plural."""
        self._reader = RegistryReader(storage, self.cache)
        self.long_work = LongWork()
        """Thread in which large objects are decoded, checked and encoded."""
        self._writer = RegistryWriter(
            storage,
            self.cache,
            self._reader,
            self.views,
            entropy,
            admission,
            authorize,
            self.long_work,
            deletion_records(ends_membership=True) if records is None else records,
            is_stale,
            observe,
        )
        self._relisting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the state and follow it. Raises StorageError."""
        await self.cache.start()

    def relist_soon(self) -> None:
        """Read the state again beside other work, if an object could not be decrypted before."""
        self._relisting = asyncio.get_running_loop().create_task(self.cache.relist(), name="relist")

    async def stop(self) -> None:
        """Stop following. The storage stays open. Idempotent."""
        if self._relisting is not None:
            self._relisting.cancel()
            await asyncio.gather(self._relisting, return_exceptions=True)
        self.long_work.stop()
        await self.cache.stop()

    @property
    def ready(self) -> bool:
        """True while views and watches follow the store."""
        return self.cache.ready

    @property
    def revision(self) -> int:
        """Newest revision that views and watches have."""
        return self.cache.revision

    @property
    def watches(self) -> dict[str, int]:
        """Open watches by plural, for metrics."""
        return {plural: cache.watches for plural, cache in self.cache.kinds.items()}

    @property
    def is_late(self) -> bool:
        """True when the views are too old to judge by: `fresh` makes them younger."""
        return self.cache.age.is_over

    async def fresh(self) -> bool:
        """Wait until views have every write acknowledged before this call. Return False when that takes too long."""
        return await self._reader.fresh()

    def admit(self, request: AdmissionRequest) -> None:
        """Run admission alone, for objects that are never stored (TokenRequest). Raises ApiError."""
        self._writer.admit(request)

    async def get(self, kind: Kind, namespace: str, name: str, resource_version: str = "") -> Stored:
        """Return one object. Raises NotFoundError."""
        return (await self._reader.get(kind, namespace, name, resource_version)).converted_to(kind)

    async def list(self, kind: Kind, namespace: str, options: ListOptions) -> ListPage:
        """Return the matching objects, or a page of them. Raises ExpiredError, RequestTimeoutError, InvalidError."""
        return await _convert(await self._reader.list(kind, namespace, options), kind)

    async def watch(
        self, kind: Kind, namespace: str, options: ListOptions, sink: Sink, *, readable_only: bool = False
    ) -> Watch:
        """Subscribe. `sink` is called synchronously, in revision order, from `Watch.replay` on, which the caller awaits.

        `readable_only`: leave out objects that cannot be read, for a reader that learns of them from its view.
        """
        converted: Sink = sink if kind.alias is None else lambda event: sink(event.converted_to(kind))
        return await self._reader.watch(kind, namespace, options, converted, readable_only=readable_only)

    async def create(self, kind: Kind, namespace: str, obj: Obj, change: Change, options: WriteOptions) -> Stored:
        """Create an object. Raises AlreadyExistsError, InvalidError, and what admission raises."""
        return (await self._writer.create(kind, namespace, kind.to_storage(obj), change, options)).converted_to(kind)

    async def update(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        obj: Obj,
        change: Change,
        options: WriteOptions,
        subresource: str = "",
        may_create: bool = False,
    ) -> tuple[Stored, bool]:
        """Replace an object, or the part that a subresource owns. The flag is True when it was created."""
        stored, created = await self._writer.update(
            kind, namespace, name, kind.to_storage(obj), change, options, subresource, may_create
        )
        return stored.converted_to(kind), created

    async def patch(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        apply: Callable[[Obj], Obj],
        change: Change,
        options: WriteOptions,
        subresource: str = "",
        size: int = 0,
    ) -> Stored:
        """Change an object by a function of its present state, which is called again after a concurrent write.

        `size`: bytes of the patch. For a large object the function runs in another thread.
        """

        def patched(current: Obj) -> Obj:
            return kind.to_storage(apply(kind.from_storage(current)))

        stored = await self._writer.patch(kind, namespace, name, patched, change, options, subresource, size)
        return stored.converted_to(kind)

    async def apply(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        config: Obj,
        change: Change,
        options: WriteOptions,
        subresource: str = "",
        may_create: bool = False,
        size: int = 0,
    ) -> tuple[Stored, bool]:
        """Apply a configuration of `size` bytes (server-side apply). The flag is True when the object was created.

        Raises ConflictError for fields that other managers own.
        """
        stored, created = await self._writer.apply(
            kind, namespace, name, kind.to_storage(config), change, options, subresource, may_create, size
        )
        return stored.converted_to(kind), created

    async def delete(self, kind: Kind, namespace: str, name: str, options: DeleteOptions, change: Change) -> Deleted:
        """Delete an object, or mark it when finalizers hold it. Raises NotFoundError, ConflictError."""
        deleted = await self._writer.delete(kind, namespace, name, options, change)
        return replace(deleted, stored=deleted.stored.converted_to(kind))

    async def delete_unreadable(self, kind: Kind, namespace: str, name: str, change: Change) -> None:
        """Delete an object that cannot be read, whatever holds it. Raises InvalidError for any other."""
        await self._writer.delete_unreadable(kind, namespace, name, change)

    async def delete_collection(
        self, kind: Kind, namespace: str, list_options: ListOptions, delete_options: DeleteOptions, change: Change
    ) -> ListPage:
        """Delete every object that a list with these options shows, and return that list."""
        deleted = await self._writer.delete_collection(kind, namespace, list_options, delete_options, change)
        return await _convert(deleted, kind)


async def _convert(listed: ListPage, kind: Kind) -> ListPage:
    """Return the list with its objects in the form of `kind`."""
    if kind.alias is None:
        return listed
    items: list[Stored] = []
    for run in slices(listed.items):
        items += [item.converted_to(kind) for item in run]
        await asyncio.sleep(0)
    return replace(listed, items=items)
