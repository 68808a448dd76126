"""The registry: the one way objects are read and changed (law 6), for every kind alike.

Rules kept here: this file only puts the parts together. Reading is `mooring.registry.reader`, writing
`mooring.registry.write.writer`, memory `mooring.registry.cache.watchcache`. HTTP, controllers and commands all come through here.
Inside, objects have the form in which they are stored; a kind with an alias is turned into it, and back, here and nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from mooring.api.kind import Change, Kind
from mooring.api.view import Views
from mooring.apimachinery.options import DeleteOptions, ListOptions, WriteOptions
from mooring.apimachinery.schema import Obj
from mooring.clock import Clock
from mooring.registry.admission.request import Admission, AdmissionRequest, Authorize
from mooring.registry.cache.kindcache import Sink, Watch
from mooring.registry.cache.stored import Stored, slices
from mooring.registry.cache.views import cache_views
from mooring.registry.cache.watchcache import WatchCache
from mooring.registry.longwork import LongWork
from mooring.registry.reader import Listed, Reader
from mooring.registry.write.writer import Deleted, Entropy, Writer
from mooring.storage.contract import Storage


class Registry:
    """Every stored object of every kind. Start it once per process, on an open storage."""

    def __init__(
        self,
        storage: Storage,
        kinds: Sequence[Kind],
        clock: Clock,
        entropy: Entropy,
        admission: Sequence[Admission],
        authorize: Authorize,
    ) -> None:
        self._cache = WatchCache(storage, kinds, clock)
        self.views: Views = cache_views(self._cache.kinds)
        """Read-only pictures of every kind, by plural."""
        self._reader = Reader(storage, self._cache)
        self.long_work = LongWork()
        """Where large objects are decoded, checked and encoded."""
        self._writer = Writer(
            storage, self._cache, self._reader, self.views, entropy, admission, authorize, self.long_work
        )

    async def start(self) -> None:
        """Read the state and follow it. Raises StorageError."""
        await self._cache.start()

    async def stop(self) -> None:
        """Stop following. The storage stays open. Idempotent."""
        self.long_work.stop()
        await self._cache.stop()

    @property
    def ready(self) -> bool:
        """Whether views and watches follow the store right now."""
        return self._cache.ready

    @property
    def revision(self) -> int:
        """The newest revision that views and watchers have seen."""
        return self._cache.revision

    @property
    def watches(self) -> dict[str, int]:
        """Open watches by plural, for metrics."""
        return {plural: cache.watches for plural, cache in self._cache.kinds.items()}

    async def fresh(self) -> bool:
        """Wait until views have every write acknowledged before this call; False when that takes too long."""
        return await self._reader.fresh()

    def admit(self, request: AdmissionRequest) -> None:
        """Admission alone, for what is never stored (TokenRequest). Raises ApiError."""
        self._writer.admit(request)

    async def get(self, kind: Kind, namespace: str, name: str, resource_version: str = "") -> Stored:
        """One object. Raises NotFoundError."""
        return (await self._reader.get(kind, namespace, name, resource_version)).shown_as(kind)

    async def list(self, kind: Kind, namespace: str, options: ListOptions) -> Listed:
        """The matching objects, or a page of them. Raises ExpiredError, RequestTimeoutError, InvalidError."""
        return await _shown(await self._reader.list(kind, namespace, options), kind)

    async def watch(self, kind: Kind, namespace: str, options: ListOptions, sink: Sink) -> Watch:
        """Subscribe. `sink` is called synchronously, in revision order, from `Watch.replay` on, which the caller awaits."""
        shown: Sink = sink if kind.alias is None else lambda event: sink(event.shown_as(kind))
        return await self._reader.watch(kind, namespace, options, shown)

    async def create(self, kind: Kind, namespace: str, obj: Obj, change: Change, options: WriteOptions) -> Stored:
        """A new object. Raises AlreadyExistsError, InvalidError, and what admission raises."""
        return (await self._writer.create(kind, namespace, kind.to_storage(obj), change, options)).shown_as(kind)

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
        """Replace an object or what a subresource owns of it; True in the result: it was created."""
        stored, created = await self._writer.update(
            kind, namespace, name, kind.to_storage(obj), change, options, subresource, may_create
        )
        return stored.shown_as(kind), created

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
        """Change an object by a function of its present state; applied again when somebody else was faster.

        `size`: bytes of the patch. With a large object the function is called in another thread.
        """

        def patched(current: Obj) -> Obj:
            return kind.to_storage(apply(kind.from_storage(current)))

        stored = await self._writer.patch(kind, namespace, name, patched, change, options, subresource, size)
        return stored.shown_as(kind)

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
        """Server-side apply of `config`, of `size` bytes; True in the result: the object was created.

        Raises ConflictError for fields of others.
        """
        stored, created = await self._writer.apply(
            kind, namespace, name, kind.to_storage(config), change, options, subresource, may_create, size
        )
        return stored.shown_as(kind), created

    async def delete(self, kind: Kind, namespace: str, name: str, options: DeleteOptions, change: Change) -> Deleted:
        """Delete an object, or mark it when finalizers hold it. Raises NotFoundError, ConflictError."""
        deleted = await self._writer.delete(kind, namespace, name, options, change)
        return replace(deleted, stored=deleted.stored.shown_as(kind))

    async def delete_collection(
        self, kind: Kind, namespace: str, list_options: ListOptions, delete_options: DeleteOptions, change: Change
    ) -> Listed:
        """Delete every object that a list with these options shows; returns what it showed."""
        deleted = await self._writer.delete_collection(kind, namespace, list_options, delete_options, change)
        return await _shown(deleted, kind)


async def _shown(listed: Listed, kind: Kind) -> Listed:
    """The same list with its objects in the form of `kind`."""
    if kind.alias is None:
        return listed
    items: list[Stored] = []
    for run in slices(listed.items):
        items += [item.shown_as(kind) for item in run]
        await asyncio.sleep(0)
    return replace(listed, items=items)
