"""`Registry`: the one way objects of every kind are read and changed (law 6), for HTTP, controllers and commands.

Rules kept here:
* This file assembles the parts, and callers use them: reading is `mooring.registry.reader`, writing
  `mooring.registry.write.writer`, memory `mooring.registry.cache.watchcache`.
* Objects have the form in which they are stored, on the way in and on the way out, also for a kind with an alias. The edge that
  serves another form converts (`mooring.server.resources.watches`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from mooring.api.kind import Kind
from mooring.api.view import Views
from mooring.authz.decision import Attributes, Authorizer, Decision, authorize
from mooring.clock import Clock
from mooring.registry.admission.request import Admission
from mooring.registry.cache.views import cache_views
from mooring.registry.cache.watchcache import WatchCache
from mooring.registry.offload import Offload
from mooring.registry.reader import RegistryReader
from mooring.registry.write.deletion import DeletionRecord, deletion_records
from mooring.registry.write.serversideapply import Observe, ignore
from mooring.registry.write.writer import Entropy, IsStale, RegistryWriter
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
        authorizers: Sequence[Authorizer],
        records: Mapping[str, DeletionRecord] | None = None,
        is_stale: IsStale = _never_stale,
        observe: Observe = ignore,
    ) -> None:
        """`is_stale`: see `mooring.registry.write.writer.IsStale`. `observe` is called with each write of the server itself."""
        self.cache = WatchCache(storage, kinds, clock)
        self.views: Views = cache_views(self.cache.kinds)
        """Read-only views of every kind, by plural."""
        self.reader = RegistryReader(storage, self.cache)
        self.long_work = Offload()
        """Thread in which large objects are decoded, checked and encoded."""
        self.writer = RegistryWriter(
            storage,
            self.cache,
            self.reader,
            self.views,
            entropy,
            admission,
            self.authorize,
            self.long_work,
            deletion_records(ends_membership=True) if records is None else records,
            is_stale,
            observe,
        )
        self._authorizers = authorizers
        self._relisting: asyncio.Task[None] | None = None

    def authorize(self, attributes: Attributes) -> Decision:
        """Decide on a request, from the objects in memory."""
        return authorize(attributes, self._authorizers, self.views)

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
