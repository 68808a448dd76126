"""Leases of the servers of a cluster, from which `default/kubernetes` lists the addresses of those that live.

Rules kept here (kube-apiserver's lease endpoint reconciler; docs/protocol/namespaces.md#the-service-defaultkubernetes):
* Each server writes `/registry/masterleases/<address>` every RENEW_SECONDS, in kube-apiserver's form and with its time to live, so
  that both programs count each other during a change from one to the other.
* A server lives while its key changes: one that has not changed for TTL_SECONDS, measured here by this server's own clock, is left
  out and deleted. So this works on stores without leases, and with clocks that differ.
* A server that stops deletes its key, unless other processes of its host serve the same address.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from mooring.apimachinery.codec.json import encode_json
from mooring.clock import Clock
from mooring.errors import StorageError
from mooring.storage.contract import KeyExistsError, RevisionMismatchError, Storage

log = logging.getLogger("mooring.plane")

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
                with suppress(RevisionMismatchError):  # it lives, or another server deleted it
                    await self._storage.delete(entry.key, expected=entry.revision)
        self._seen = seen
        if self._address:
            await self._renew(next((one.revision for one in found.entries if one.key == PREFIX + self._address), 0))
        before, self.addresses = self.addresses, tuple(sorted(live))
        return self.addresses != before

    async def _renew(self, revision: int) -> None:
        key, value = PREFIX + self._address, _value(self._address)
        with suppress(KeyExistsError, RevisionMismatchError):  # another process with this address was faster
            if revision:
                await self._storage.update(key, value, expected=revision, ttl=TTL_SECONDS)
            else:
                await self._storage.create(key, value, ttl=TTL_SECONDS)

    async def _end(self) -> None:
        if not self._address:
            return
        with suppress(StorageError):  # it ends by itself
            found = await self._storage.get(PREFIX + self._address)
            if found is not None:
                await self._storage.delete(found.key, expected=found.revision)


def _value(address: str) -> bytes:
    return encode_json({"kind": "Endpoints", "apiVersion": "v1", "subsets": [{"addresses": [{"ip": address}]}]})
