"""`StoreWatermark`: keep the watermark of a store, and hold back what is issued while the store is older than it.

Rules kept here:
* The watermark has the newest revision that was seen, the cluster, the end of the issuance log, and what ended: revocations, tokens
  and Nodes that were deleted, joins that were counted, the rollover of the CA, the generation of the shared keys
  (`mooring.trust.storewatermark`).
* A clean stop writes it; after `kill -9` it is behind by PAUSE or, where only the revision changed, by REVISION_PAUSE.
* A store that was restored while this server runs, which the driver of etcd notices, is judged before the next write of the
  watermark.
* Until an older store is settled the watermark stays as it was: another start, and another worker, come to the same judgement.
* A store in memory has no watermark.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring import lineagerecord, tombstones
from mooring.apimachinery.options import ListOptions
from mooring.clock import Clock
from mooring.controlplane.maintenance import wait_for_event
from mooring.controlplane.storewatermark.olderstore import (
    FOLLOWED,
    KUBE_SYSTEM,
    RememberedTombstones,
    cluster_of,
    is_another,
    is_older,
)
from mooring.controlplane.storewatermark.tombstonelist import RevocationsAgain, TombstoneList, shared_keys
from mooring.controlplane.storewatermark.watermarkfile import WatermarkFile
from mooring.errors import MooringError, StorageError
from mooring.reconcile.registryapi import RegistryApi
from mooring.registry.cache.events import Event
from mooring.registry.store import Registry
from mooring.storage.contract import Storage
from mooring.storage.restores import add_epoch, read_restores
from mooring.trust.storewatermark import Watermark

log = logging.getLogger("mooring")

PAUSE = 0.2
"""Seconds between two writes after something ended: each waits for the disk."""
REST_FACTOR = 20
"""Rest after a write as a multiple of its time, so that a watermark of 2 MB takes a twentieth of one thread."""
LAST_WRITE_SECONDS = 2.0
"""Time for the write at a stop, which waits no longer for a store that does not answer. The file has all but the last moments."""
REVISION_PAUSE = 5.0
"""Seconds between two writes when only the revision has changed."""


class StoreWatermark:
    """The watermark of one data directory and the store that is compared with it, for one process."""

    def __init__(
        self,
        file: WatermarkFile,
        registry: Registry,
        api: RegistryApi,
        storage: Storage,
        clock: Clock,
        is_continued: bool,
    ) -> None:
        self.is_continued = is_continued
        """False in the first life of a server on a store that was restored from an older copy, emptied or replaced."""
        self._file = file
        self._registry = registry
        self._storage = storage
        self._clock = clock
        self._changed = asyncio.Event()
        self._tombstones = RememberedTombstones(file.watermark, registry.views, clock, self._changed, file.directory)
        self._revocations = RevocationsAgain(file, registry, api, clock)
        self._list = TombstoneList(file, registry, api, storage, clock, self._holds_lock)
        self._is_older = False
        """True while the store is older than the watermark, and that is not settled."""
        self._owes_epoch = False
        """True when the store may have a lower count than the watermark, and that was settled."""
        self._turn = asyncio.Lock()
        """Held by a write and by a judgement: one that began before a restore must not put its watermark in the place of a later
        one."""

    @property
    def is_settled(self) -> bool:
        """True when the store is not older than the watermark, or that was settled."""
        return not self._is_older and not self._file.damage

    async def compare(self) -> None:
        """Find out whether the store is older than the watermark. Raises StorageError."""
        watermark, views = self._file.watermark, self._registry.views
        self._is_older = await is_older(watermark, views, self._storage)
        if is_another(watermark, cluster_of(views)) and self.is_continued:
            self.is_continued = False
            log.error(
                "the store was emptied, or is that of another cluster: this server remembers cluster %s",
                watermark.cluster,
            )

    async def judge(self) -> None:
        """Revoke again what the store would bring back, and write the other tombstones into their ConfigMap, unless it is settled.

        Raises MooringError.
        """
        async with self._turn:
            if self.is_settled:
                return
            await self._revocations.make()
            data = await self._list.update()
            if data is not None:
                self._adopt(data)

    def _adopt(self, data: Mapping[str, str]) -> None:
        """Go on with the store as it is: nothing would come back, or all of it was settled."""
        file = self._file
        if file.damage and self._holds_lock():
            file.set_aside()
        self._tombstones.forget_accepted(data)
        self._is_older, file.damage, self._owes_epoch = False, "", True
        # with the revision that was lost the next write would find the same restore, and write nothing
        file.watermark = replace(file.watermark, revision=max(file.watermark.revision, self._registry.cache.revision))
        self._tombstones.read_state()
        log.info("nothing that this server remembers as ended would come back from the store; certificates are issued")

    # -- while the server runs ---------------------------------------------------------------------------------------

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Follow what ends and write the watermark until the block ends, and once more then."""
        async with AsyncExitStack() as stack:
            for plural in FOLLOWED:
                await self._follow(stack, plural, ListOptions(watch=True))
            await self._follow(stack, lineagerecord.PLURAL, ListOptions(watch=True, send_initial_events=False))
            if self.is_settled:
                self._tombstones.read_state()
            await self.write()
            task = asyncio.create_task(self._run(), name="store watermark")
            try:
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_WRITE_SECONDS):
                        await self.write()
                self._file.release()

    async def _follow(self, stack: AsyncExitStack, plural: str, options: ListOptions) -> None:
        kind = BY_PLURAL[plural]
        namespace = KUBE_SYSTEM if kind.resource.namespaced else ""

        def note(event: Event) -> None:
            if self.is_settled or plural != lineagerecord.PLURAL:
                self._tombstones.note(plural, event)

        watch = await self._registry.reader.watch(kind, namespace, options, note, readable_only=True)
        stack.callback(watch.close)
        await watch.replay()

    async def _run(self) -> None:
        while True:
            await wait_for_event(self._changed, self._clock.sleep(REVISION_PAUSE))
            self._changed.clear()
            began = self._clock.monotonic()
            try:
                await self.write()  # finds out that the store was restored
                if not self.is_settled and not (self._revocations.are_made and self._list.waits()):
                    await self.judge()
                    await self.write()
            except MooringError as error:
                log.warning("what this server remembers of its store was not brought up to date: %s", error)
            await self._clock.sleep(max(PAUSE, REST_FACTOR * (self._clock.monotonic() - began)))

    async def write(self) -> None:
        """Write the watermark, unless the file has it, another worker writes it, or the store is older and that is not settled."""
        async with self._turn:
            await self._write()

    async def _write(self) -> None:
        views, file = self._registry.views, self._file
        if not self.is_settled or tombstones.refusal(views) or not self._holds_lock():
            return
        try:
            keys = await shared_keys(self._storage)
            restores = await read_restores(self._storage)
        except StorageError:
            return  # the store does not serve: nothing new is known
        if any(one.lost(file.watermark.revision) for one in restores):
            self._is_older = True  # it was restored while this server ran
            self._revocations.begin_again()
            self._changed.set()
            return
        self._tombstones.note_keys(keys)
        watermark = Watermark(
            revision=max(self._registry.cache.revision, file.watermark.revision),
            cluster=cluster_of(views) or file.watermark.cluster,
            issuance_log=self._tombstones.issuance_log,
            tombstones=self._tombstones.tombstones,
            server=file.watermark.server or self._new_count(),
            epoch=file.watermark.epoch,
        )
        if self._owes_epoch or (watermark.tombstones, watermark.issuance_log) != (
            file.watermark.tombstones,
            file.watermark.issuance_log,
        ):
            try:
                server = watermark.server if watermark.server.endswith(file.server) else self._new_count()
                epoch, revision = await add_epoch(self._storage, server, watermark.epoch)
            except StorageError:
                return  # the store takes no writes now; what has ended is in it
            watermark = replace(watermark, server=server, epoch=epoch, revision=max(watermark.revision, revision))
            self._owes_epoch = False
        await asyncio.to_thread(file.write, watermark)

    def _new_count(self) -> str:
        """Return a name for the count of this server. A copy of the data directory in another place counts for itself."""
        return secrets.token_hex(8) + self._file.server

    def _holds_lock(self) -> bool:
        """Return whether this process writes the watermark of the directory."""
        return self._file.hold(self._tombstones.take_over)
