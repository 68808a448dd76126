"""Work that a server does from time to time: compaction and expiry, the leases of its address, and the last use of tokens."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.api.mooring.uniqueness import with_use
from mooring.apimachinery.codec.json import encode_json
from mooring.apimachinery.options import WriteOptions
from mooring.apimachinery.patch import merge_patch
from mooring.apimachinery.schema import Obj
from mooring.authn.lastuses import CertificateUses, LastUse, LastUses, NodeUse
from mooring.clock import Clock
from mooring.errors import ConflictError, MooringError, NotFoundError, StorageError
from mooring.identity import API_SERVER_USER
from mooring.registry.store import Registry
from mooring.storage.contract import KeyExistsError, RevisionMismatchError, Storage

# Waits of background work for an event, or for a time at which it acts without one.


async def wait_for_event(event: asyncio.Event, timer: Coroutine[Any, Any, None]) -> bool:
    """Return when `event` is set or `timer` has ended, whichever comes first. Return whether `event` is set; it stays set."""
    waiting = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(timer)]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return event.is_set()


# Records now and then that the token of a Secret was used, in a label or an annotation of the Secret, and which certificates of a
# node were used, in the status of its NodeIdentity.
#
# Rules kept here (docs/protocol/service-account-tokens.md#legacy-tokens): requests never wait for this. A record is a merge patch
# through the registry, of the very Secret that was used (by uid). A failed write is noted again at the next use. Writes come one
# after the other. This task stands here and not with the authenticator, because it writes through the registry.

authentication_log = logging.getLogger("mooring.authentication")

RECORD_SECONDS = 5.0
"""Records hold a day or an hour, so that a delay of seconds does not matter. Many first uses share commits."""
RECORDED_AT_ONCE = 32
"""Uses of certificates that are written at a time, beside the writes of clients."""


async def record_forever(uses: LastUses, registry: Registry, clock: Clock) -> None:
    """Write the noted uses every RECORD_SECONDS, until cancelled."""
    while True:
        await clock.sleep(RECORD_SECONDS)
        await record(uses, registry, clock)


async def record(uses: LastUses, registry: Registry, clock: Clock) -> None:
    """Write the noted uses."""
    for use in uses.take():
        try:
            await _labelled(use, registry, clock)
        except MooringError as error:
            authentication_log.warning(
                "the last use of Secret %s/%s was not written down: %s", use.namespace, use.name, error
            )


async def _labelled(use: LastUse, registry: Registry, clock: Clock) -> None:
    patch = {"metadata": use.metadata}

    def apply(current: Obj) -> Obj:
        if current["metadata"].get("uid") != use.uid:
            raise ConflictError.of("", "secrets", use.name, "it is another Secret now")
        return merge_patch(current, patch)

    change = Change(API_SERVER_USER, clock.now(), writer="last-uses")
    await registry.writer.patch(BY_PLURAL["secrets"], use.namespace, use.name, apply, change, WriteOptions())


async def record_certificates_forever(uses: CertificateUses, registry: Registry, clock: Clock) -> None:
    """Write the noted uses of certificates every RECORD_SECONDS, until cancelled."""
    while True:
        await clock.sleep(RECORD_SECONDS)
        await record_certificates(uses, registry, clock)


async def record_certificates(uses: CertificateUses, registry: Registry, clock: Clock) -> None:
    """Write the noted uses of certificates into the status of the NodeIdentities."""
    by_node: dict[str, list[NodeUse]] = {}
    for one in uses.take():
        by_node.setdefault(one.node, []).append(one)
    # A few at a time: writes that wait for one another share a commit. After an upgrade every member has its first use. The uses of
    # one machine are one write: several at a time would conflict.
    waiting = list(by_node.items())
    for start in range(0, len(waiting), RECORDED_AT_ONCE):
        some = waiting[start : start + RECORDED_AT_ONCE]
        await asyncio.gather(*(_used(node, noted, registry, clock) for node, noted in some))


async def _used(node: str, noted: Sequence[NodeUse], registry: Registry, clock: Clock) -> None:
    def apply(current: Obj) -> Obj:
        for one in noted:
            current = with_use(current, one.use, one.behind) or current
        return current

    change = Change(API_SERVER_USER, clock.now(), writer="last-uses")
    try:
        await registry.writer.patch(BY_PLURAL[IDENTITIES], "", node, apply, change, WriteOptions(), "status")
    except NotFoundError:
        return  # the machine has left meanwhile
    except MooringError as error:
        authentication_log.warning("the use of a certificate of node %s was not written down: %s", node, error)


# Compaction of old revisions, as kube-apiserver does with etcd: each lives for at least five and at most ten minutes.
#
# Rules kept here: current objects are never removed. Of several servers on one store, one compacts in
# each interval. A failure is logged, and the next
# interval tries again.

log = logging.getLogger("mooring.controlplane")

INTERVAL_SECONDS = 300.0
"""kube-apiserver's --etcd-compaction-interval; lists by continue token and watches by revision can go back this far."""


async def compact_forever(storage: Storage, clock: Clock) -> None:
    """At each interval, compact up to the revision of the interval before. Runs until cancelled."""
    before = await storage.revision()
    while True:
        await clock.sleep(INTERVAL_SECONDS)
        try:
            now = await storage.revision()
            if await storage.claim_compaction(before):
                await storage.compact(before)
            before = now
        except StorageError as error:
            log.warning("old revisions could not be compacted: %s", error)


# Verification of the store in the background, a little at a time.
#
# Rules kept here: the process that runs the controllers does it. The driver (`Storage.verify`) puts damage into the log, the
# health checks and the metrics. A store of 100 000 records is read in half an hour, with a thousandth of a core.

PAUSE_SECONDS = 1.0
"""Time between two slices of about half a millisecond."""


async def verify_forever(storage: Storage, clock: Clock, leads: Callable[[], bool]) -> None:
    """Verify the next part of the store again and again, while `leads` returns True. Runs until cancelled."""
    while True:
        await clock.sleep(PAUSE_SECONDS)
        if leads():
            # The store is closing.
            with suppress(StorageError):
                await storage.verify()


# Return memory that closed connections have freed to the operating system (malloc_trim(3)).
#
# Rules kept here:
# * glibc returns free memory only from the end of its heap. The blocks that OpenSSL freed after a thousand connections lie
#   between blocks in use, and would never be returned. `malloc_trim` returns every free page.
# * It takes about 0.4 ms for each MiB, in a thread, and other threads may wait for the heap meanwhile. It runs when resident
#   memory is well above the size after the last run and has stopped growing, and once more after a run that returned much, for
#   blocks that were freed meanwhile.
# * Without /proc or malloc_trim (macOS, musl) nothing happens.

LOOK_SECONDS = 10.0
"""Interval between two looks, which read one line of /proc. Memory of closed connections is returned within two looks."""
MIN_GROWTH_BYTES = 16 << 20
"""Growth below this, in bytes, does not start a run."""
MIN_GROWTH_PART = 4
"""Nor does growth below this part of the size after the last run: larger heaps take longer, and are trimmed less often."""
STATM = Path("/proc/self/statm")


class Trimming:
    """Decides when to trim. Sizes are bytes of resident memory."""

    def __init__(self, resident: int) -> None:
        self._floor = resident
        self._before = resident
        self._was_large = False

    def is_due(self, resident: int) -> bool:
        """Return whether to trim now; called at every look."""
        has_settled = resident <= self._before
        self._before = resident
        self._floor = min(self._floor, resident)
        growth = resident - self._floor
        return has_settled and (self._was_large or growth >= max(MIN_GROWTH_BYTES, self._floor // MIN_GROWTH_PART))

    def done(self, resident: int) -> None:
        """Note the size after a run."""
        self._was_large = self._before - resident >= MIN_GROWTH_BYTES
        self._floor = self._before = resident


def resident_bytes(statm: Path = STATM) -> int | None:
    """Return the resident memory of this process (proc(5)), None on a system without /proc."""
    try:
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def malloc_trim() -> Callable[[], object] | None:
    """Return the function of the C library, None when it has none."""
    try:
        function = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    return lambda: function(0)


async def trim_forever(
    clock: Clock, resident: Callable[[], int | None] = resident_bytes, trim: Callable[[], object] | None = None
) -> None:
    """Trim when it is due, until cancelled; return at once on a system without the means."""
    trim = trim or malloc_trim()
    first = resident()
    if trim is None or first is None:
        return
    trimming = Trimming(first)
    while True:
        await clock.sleep(LOOK_SECONDS)
        if trimming.is_due(resident() or 0):
            await asyncio.to_thread(trim)
            trimming.done(resident() or 0)


# Leases of the servers of a cluster, from which `default/kubernetes` lists the addresses of those that live.
#
# Rules kept here (kube-apiserver's lease endpoint reconciler; docs/protocol/namespaces.md#the-service-defaultkubernetes):
# * Each server writes `/registry/masterleases/<address>` every RENEW_SECONDS, in kube-apiserver's form and with its time to live,
#   so that both programs count each other during a change from one to the other.
# * A server lives while its key changes: one that has not changed for TTL_SECONDS, measured here by this server's own clock, is
#   left out and deleted. So this works on stores without leases, and with clocks that differ.
# * A server that stops deletes its key, unless other processes of its host serve the same address.

PREFIX = "/registry/masterleases/"
TTL_SECONDS = 15
"""kube-apiserver's."""
RENEW_SECONDS = 5.0
"""A third of it, so that one write may fail. kube-apiserver renews every 10 s."""
MAX_SERVERS = 1000
"""An EndpointSlice holds as many addresses."""


class MasterLeases:
    """The lease of one server, and what it observes of the others."""

    def __init__(self, storage: Storage, address: str, clock: Clock, *, is_alone: bool) -> None:
        """`address`: that of this server for Pods; empty when it has none. `is_alone`: no other process serves it."""
        self._storage = storage
        self._address = address
        self._clock = clock
        self._is_alone = is_alone
        self._seen: dict[str, tuple[int, float]] = {}
        self.addresses: tuple[str, ...] = (address,) if address else ()

    async def run(self, changed: Callable[[], None]) -> None:
        """Renew and observe every RENEW_SECONDS until cancelled, and call `changed` when the addresses have changed."""
        failed = False
        try:
            while True:
                try:
                    if await self.look():
                        changed()
                    failed = False
                except StorageError as error:
                    if not failed:
                        log.warning("the lease of this server's address could not be renewed: %s", error)
                    failed = True
                await self._clock.sleep(RENEW_SECONDS)
        finally:
            if self._is_alone:
                await self._end()

    async def look(self) -> bool:
        """Renew the lease, and return whether the addresses of the servers have changed. Raises StorageError."""
        now = self._clock.monotonic()
        found = await self._storage.range(PREFIX, limit=MAX_SERVERS, counted=False)
        live = {self._address} - {""}
        seen: dict[str, tuple[int, float]] = {}
        for entry in found.entries:
            address = entry.key.removeprefix(PREFIX)
            revision, since = self._seen.get(address, (0, now))
            seen[address] = (entry.revision, now if revision != entry.revision else since)
            if now - seen[address][1] < TTL_SECONDS:
                live.add(address)
            elif address != self._address:
                # It lives, or another server deleted it.
                with suppress(RevisionMismatchError):
                    await self._storage.delete(entry.key, expected=entry.revision)
        self._seen = seen
        if self._address:
            await self._renew(next((one.revision for one in found.entries if one.key == PREFIX + self._address), 0))
        before, self.addresses = self.addresses, tuple(sorted(live))
        return self.addresses != before

    async def _renew(self, revision: int) -> None:
        key, value = PREFIX + self._address, _value(self._address)
        # Another process with this address was faster.
        with suppress(KeyExistsError, RevisionMismatchError):
            if revision:
                await self._storage.update(key, value, expected=revision, ttl=TTL_SECONDS)
            else:
                await self._storage.create(key, value, ttl=TTL_SECONDS)

    async def _end(self) -> None:
        if not self._address:
            return
        # It ends by itself.
        with suppress(StorageError):
            found = await self._storage.get(PREFIX + self._address)
            if found is not None:
                await self._storage.delete(found.key, expected=found.revision)


def _value(address: str) -> bytes:
    return encode_json({"kind": "Endpoints", "apiVersion": "v1", "subsets": [{"addresses": [{"ip": address}]}]})
