"""Writer of the issuance log: appends entries to the hash chain, many to a record.

Rules kept here:
* `append` returns once the entry is stored. A certificate is published only then, so that none exists without an entry. After a
  crash between the two, the chain has an entry of a certificate that no machine received.
* Entries that arrive while a record is being written share the next record. A burst of signatures costs one write for many.
* The next sequence number is created, never replaced: when another process was faster, the writer reads on from there, and appends
  its entries after those.
* An entry that wants a fresh key is appended only while no other request has a valid certificate of its key. The sequence number is
  the claim: two servers that sign for one key at the same moment cannot both append.
* A failure reaches every caller of the batch, whose keys are planned again.
* A cluster without the kind (another API server, without the CustomResourceDefinition) records nothing, which is logged once. The
  records begin when it is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from mooring.api.mooring.lineagerecord import MAX_ENTRIES, PLURAL
from mooring.api.view import Guarded
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339
from mooring.controllers.certificates.signing.signer import CertifiedKeys, recorded_keys
from mooring.errors import AlreadyExistsError, ForbiddenError, NotFoundError, StorageError
from mooring.reconcile.clusterapi import ClusterApi
from mooring.trust.issuancelog import START, Checkpoint, IssuanceLogKey, checkpoint_of, new_record, record_name

log = logging.getLogger("mooring.controllers")

APPEND_TRIES = 100
"""Records of other writers that one batch reads past. Only the holder of the controllers' Lease writes, so that more is a fault."""


class KeyCertifiedError(Exception):
    """The chain has a valid certificate of the same key, of another request."""


class NoKindError(Exception):
    """The cluster has no LineageRecords."""


def ignore_head(head: Checkpoint) -> None:
    """Keep the end of the chain nowhere else than in the store."""


class IssuanceLogWriter:
    """Appends entries through one cluster's API."""

    def __init__(
        self,
        api: ClusterApi,
        key: IssuanceLogKey | None = None,
        on_head: Callable[[Checkpoint], None] = ignore_head,
    ) -> None:
        """`on_head` is called with the checkpoint of each record that this writer wrote or found at its start."""
        self._api = api
        self._key = key
        self._on_head = on_head
        self._head: Checkpoint | None = None
        self._waiting: list[tuple[Obj, bool, asyncio.Future[None]]] = []
        self._keys = CertifiedKeys(recorded_keys)
        self._writing: asyncio.Task[None] | None = None
        self._has_warned = False

    async def append(self, entry: Obj, fresh_key: bool = False) -> None:
        """Store an entry. Raises ApiError, PeerError or StorageError when it is not known to be stored.

        With `fresh_key`, raises KeyCertifiedError when another request has a valid certificate of the key.
        """
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((entry, fresh_key, stored))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name="lineage")
        await stored

    async def _write(self) -> None:
        while self._waiting:
            # Entries that arrive while a record is written share the next one: a burst of signatures costs one write.
            batch, self._waiting = self._waiting[:MAX_ENTRIES], self._waiting[MAX_ENTRIES:]
            failure: Exception | None = None
            refused: Sequence[int] = ()
            try:
                refused = await self._append([(entry, fresh_key) for entry, fresh_key, _ in batch])
            except NoKindError:
                self._warn()
            except Exception as error:
                # The outcome may be unknown, so the end of the chain is read again.
                self._head = None
                failure = error
            for place, (_, _, stored) in enumerate(batch):
                if stored.done():
                    continue  # its caller was cancelled
                if failure is not None:
                    stored.set_exception(failure)
                elif place in refused:
                    stored.set_exception(KeyCertifiedError())
                else:
                    stored.set_result(None)

    async def _append(self, batch: Sequence[tuple[Obj, bool]]) -> Sequence[int]:
        """Append the entries whose claims hold, and return the places of the others."""
        for _ in range(APPEND_TRIES):
            head = self._head or await self._find_head()
            # Judged again in each round: the record of another writer may have an entry for the same key.
            refused = self._refused(batch, head)
            entries = [entry for place, (entry, _) in enumerate(batch) if place not in refused]
            if not entries:
                return refused
            record, after = new_record(head, entries, self._key)
            try:
                # The next number is created and never replaced: of two writers one fails and reads on from there.
                await self._api.create(PLURAL, record)
            except (AlreadyExistsError, ForbiddenError):
                found = await self._at(head.sequence + 1)
                if found is None:
                    raise
                self._head = found
                continue
            except NotFoundError:
                raise NoKindError from None
            self._head = after
            self._on_head(after)
            return refused
        raise StorageError(
            f"{APPEND_TRIES} records of other writers came first; only one process may write the issuance log"
        )

    def _refused(self, batch: Sequence[tuple[Obj, bool]], head: Checkpoint) -> list[int]:
        """Return the places of entries that want a fresh key and have none, by every record up to `head`.

        The record after `head` is created only once, so that no other writer's entry can come between. A cluster whose records are
        not watched claims nothing. Raises StorageError while the view lacks a record, UnreadableObjectError for one that cannot be
        read.
        """
        unguarded = self._api.views.get(PLURAL)
        if unguarded is None or not any(fresh_key for _, fresh_key in batch):
            return []
        view = Guarded(PLURAL, unguarded)
        # A view without the newest record could lack the certificate of the same key.
        if head is not START and view.get(record_name(head.sequence)) is None:
            raise StorageError("the newest record of the issuance log has not arrived here yet")
        refused, taken = list[int](), dict[str, str]()
        for place, (entry, fresh_key) in enumerate(batch):
            key, uid = entry.get("publicKey", ""), entry.get("requestUID", "")
            now = parse_rfc3339(entry["time"])
            if fresh_key and (taken.get(key, uid) != uid or self._keys.has(view, key, now, other_than=uid)):
                refused.append(place)
            else:
                taken[key] = uid
        return refused

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

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "certificates are not recorded: the cluster does not serve lineagerecords.mooring.dev; apply what mooring "
                "controllers manifests prints with csrsigner among its --controllers"
            )
