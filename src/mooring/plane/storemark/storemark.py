"""`StoreMark`: keep the mark of a store, and hold back what is issued while the store is older than it.

Rules kept here:
* The mark has the newest revision that was seen, the cluster, the end of the lineage, and what ended: revocations, tokens and Nodes
  that were deleted, joins that were counted, the rollover of the CA, the generation of the shared keys (`mooring.trust.endsmark`).
* A clean stop writes it; after `kill -9` it is behind by PAUSE or, where only the revision changed, by REVISION_PAUSE.
* A store that was restored while this server runs, which the driver of etcd notices, is judged before the next write of the mark.
* Until an older store is settled the mark stays as it was: another start, and another worker, come to the same judgement.
* A store in memory has no mark.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring import ends, lineagerecord
from mooring.apimachinery.options import ListOptions
from mooring.clock import Clock
from mooring.errors import MooringError, StorageError
from mooring.plane.maintenance import wait_for_event
from mooring.plane.storemark.endslist import EndsList, RevocationsAgain, shared_keys
from mooring.plane.storemark.markfile import MarkFile
from mooring.plane.storemark.olderstore import FOLLOWED, KUBE_SYSTEM, RememberedEnds, cluster_of, is_another, is_older
from mooring.reconcile.registryapi import RegistryApi
from mooring.registry.cache.events import Event
from mooring.registry.store import Registry
from mooring.storage.contract import Storage
from mooring.storage.restores import add_witness, read_restores
from mooring.trust.endsmark import Mark

log = logging.getLogger("mooring")

PAUSE = 0.2
"""Seconds between two writes after something ended: each waits for the disk."""
REST_FACTOR = 20
"""Rest after a write as a multiple of its time, so that a mark of 2 MB takes a twentieth of one thread."""
LAST_WRITE_SECONDS = 2.0
"""Time for the write at a stop, which waits no longer for a store that does not answer. The file has all but the last moments."""
REVISION_PAUSE = 5.0
"""Seconds between two writes when only the revision has changed."""


class StoreMark:
    """The mark of one data directory and the store that is compared with it, for one process."""

    def __init__(
        self, file: MarkFile, registry: Registry, api: RegistryApi, storage: Storage, clock: Clock, is_continued: bool
    ) -> None:
        self.is_continued = is_continued
        """False in the first life of a server on a store that was restored from an older copy, emptied or replaced."""
        self._file = file
        self._registry = registry
        self._storage = storage
        self._clock = clock
        self._changed = asyncio.Event()
        self._ends = RememberedEnds(file.mark, registry.views, clock, self._changed, file.directory)
        self._revocations = RevocationsAgain(file, registry, api, clock)
        self._list = EndsList(file, registry, api, storage, clock, self._holds_lock)
        self._is_older = False
        """True while the store is older than the mark, and that is not settled."""
        self._owes_witness = False
        """True when the store may have a lower count than the mark, and that was settled."""
        self._turn = asyncio.Lock()
        """Held by a write and by a judgement: one that began before a restore must not put its mark in the place of a later one."""

    @property
    def is_settled(self) -> bool:
        """True when the store is not older than the mark, or that was settled."""
        return not self._is_older and not self._file.damage

    async def compare(self) -> None:
        """Find out whether the store is older than the mark. Raises StorageError."""
        mark, views = self._file.mark, self._registry.views
        self._is_older = await is_older(mark, views, self._storage)
        if is_another(mark, cluster_of(views)) and self.is_continued:
            self.is_continued = False
            log.error(
                "the store was emptied, or is that of another cluster: this server remembers cluster %s", mark.cluster
            )

    async def judge(self) -> None:
        """Revoke again what the store would bring back, and write the other ends into their ConfigMap, unless it is settled.

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
        self._ends.forget_waived(data)
        self._is_older, file.damage, self._owes_witness = False, "", True
        # with the revision that was lost the next write would find the same restore, and write nothing
        file.mark = replace(file.mark, revision=max(file.mark.revision, self._registry.cache.revision))
        self._ends.read_state()
        log.info("nothing that this server remembers as ended would come back from the store; certificates are issued")

    # -- while the server runs ---------------------------------------------------------------------------------------

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Follow what ends and write the mark until the block ends, and once more then."""
        async with AsyncExitStack() as stack:
            for plural in FOLLOWED:
                await self._follow(stack, plural, ListOptions(watch=True))
            await self._follow(stack, lineagerecord.PLURAL, ListOptions(watch=True, send_initial_events=False))
            if self.is_settled:
                self._ends.read_state()
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
                self._file.release()

    async def _follow(self, stack: AsyncExitStack, plural: str, options: ListOptions) -> None:
        kind = BY_PLURAL[plural]
        namespace = KUBE_SYSTEM if kind.resource.namespaced else ""

        def note(event: Event) -> None:
            if self.is_settled or plural != lineagerecord.PLURAL:
                self._ends.note(plural, event)

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
        """Write the mark, unless the file has it, another worker writes it, or the store is older and that is not settled."""
        async with self._turn:
            await self._write()

    async def _write(self) -> None:
        views, file = self._registry.views, self._file
        if not self.is_settled or ends.refusal(views) or not self._holds_lock():
            return
        try:
            keys = await shared_keys(self._storage)
            restores = await read_restores(self._storage)
        except StorageError:
            return  # the store does not serve: nothing new is known
        if any(one.lost(file.mark.revision) for one in restores):
            self._is_older = True  # it was restored while this server ran
            self._revocations.begin_again()
            self._changed.set()
            return
        self._ends.note_keys(keys)
        mark = Mark(
            revision=max(self._registry.cache.revision, file.mark.revision),
            cluster=cluster_of(views) or file.mark.cluster,
            lineage=self._ends.lineage,
            ends=self._ends.ends,
            server=file.mark.server or self._new_count(),
            witness=file.mark.witness,
        )
        if self._owes_witness or (mark.ends, mark.lineage) != (file.mark.ends, file.mark.lineage):
            try:
                server = mark.server if mark.server.endswith(file.server) else self._new_count()
                witness, revision = await add_witness(self._storage, server, mark.witness)
            except StorageError:
                return  # the store takes no writes now; what has ended is in it
            mark = replace(mark, server=server, witness=witness, revision=max(mark.revision, revision))
            self._owes_witness = False
        await asyncio.to_thread(file.write, mark)

    def _new_count(self) -> str:
        """Return a name for the count of this server. A copy of the data directory in another place counts for itself."""
        return secrets.token_hex(8) + self._file.server

    def _holds_lock(self) -> bool:
        """Return whether this process writes the mark of the directory."""
        return self._file.hold(self._ends.take_over)
