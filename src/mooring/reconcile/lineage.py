"""Writer of the lineage: appends entries to the hash chain, many to a record.

Rules kept here:
* `append` returns once the entry is stored. A certificate is published only then, so that none exists without an entry. After a
  crash between the two, the chain has an entry of a certificate that nobody received.
* Entries that arrive while a record is being written share the next record. A burst of signatures costs one write for many.
* The next sequence number is created, never replaced: when another process was faster, the writer reads on from there, and appends
  its entries after those.
* A failure reaches every caller of the batch, whose keys are planned again.
* A cluster without the kind (another API server, without the CustomResourceDefinition) records nothing, which is logged once. The
  records begin when it is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from mooring.api.mooring.lineagerecord import MAX_ENTRIES, PLURAL
from mooring.apimachinery.schema import Obj
from mooring.errors import AlreadyExistsError, ForbiddenError, NotFoundError, StorageError
from mooring.reconcile.clusterapi import ClusterApi
from mooring.trust.discovery.errors import NotKubernetesError
from mooring.trust.lineage.chain import START, Checkpoint, LineageKey, checkpoint_of, new_record, record_name

log = logging.getLogger("mooring.controllers")

APPEND_TRIES = 100
"""Records of other writers that one batch reads past. Only the holder of the controllers' Lease writes, so that more is a fault."""


class NoKindError(Exception):
    """The cluster has no LineageRecords."""


def ignore_head(head: Checkpoint) -> None:
    """Keep the end of the chain nowhere else than in the store."""


class LineageWriter:
    """Appends entries through one cluster's API."""

    def __init__(
        self,
        api: ClusterApi,
        key: LineageKey | None = None,
        on_head: Callable[[Checkpoint], None] = ignore_head,
    ) -> None:
        """`on_head` is called with the checkpoint of each record that this writer wrote or found at its start."""
        self._api = api
        self._key = key
        self._on_head = on_head
        self._head: Checkpoint | None = None
        self._waiting: list[tuple[Obj, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._has_warned = False

    async def append(self, entry: Obj) -> None:
        """Store an entry. Raises ApiError, PeerError or StorageError when it is not known to be stored."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((entry, stored))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name="lineage")
        await stored

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MAX_ENTRIES], self._waiting[MAX_ENTRIES:]
            failure: Exception | None = None
            try:
                await self._append([entry for entry, _ in batch])
            except NoKindError:
                self._warn()
            except Exception as error:
                self._head = None  # the outcome may be unknown: read the end of the chain again
                failure = error
            for _, stored in batch:
                if stored.done():
                    continue  # its caller was cancelled
                if failure is not None:
                    stored.set_exception(failure)
                else:
                    stored.set_result(None)

    async def _append(self, entries: list[Obj]) -> None:
        for _ in range(APPEND_TRIES):
            head = self._head or await self._find_head()
            record, after = new_record(head, entries, self._key)
            try:
                await self._api.create(PLURAL, record)
            except (AlreadyExistsError, ForbiddenError):
                found = await self._at(head.sequence + 1)
                if found is None:
                    raise
                self._head = found
                continue
            except NotFoundError:
                raise NoKindError from None
            except NotKubernetesError as error:
                raise _without_kind(error) from None
            self._head = after
            self._on_head(after)
            return
        raise StorageError(
            f"{APPEND_TRIES} records of other writers came first; only one process may write the lineage"
        )

    async def _find_head(self) -> Checkpoint:
        """Return the end of the chain: the last record of the view, or one that the view does not have yet."""
        head = START
        view = self._api.views.get(PLURAL)
        for record in view.list() if view is not None else ():
            head = checkpoint_of(record) or head
        step = 1  # doubled up to the first gap, and then halved: a view may lack thousands of records, or all
        while (following := await self._at(head.sequence + step)) is not None:
            head, step = following, 2 * step
        while step > 1:
            step //= 2
            head = await self._at(head.sequence + step) or head
        if head is not START:
            self._on_head(head)
        return head

    async def _at(self, sequence: int) -> Checkpoint | None:
        try:
            return checkpoint_of(await self._api.get(PLURAL, "", record_name(sequence)))
        except NotFoundError:
            return None
        except NotKubernetesError as error:
            raise _without_kind(error) from None

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "certificates are not recorded: the cluster has no LineageRecords; apply what "
                "`mooring controllers manifests` prints"
            )


def _without_kind(error: NotKubernetesError) -> Exception:
    """Return NoKindError for the 404 of a resource that the API server does not know, which is no Status; else the error."""
    return NoKindError() if "status 404 " in str(error) else error
