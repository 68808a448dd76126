"""Leases of etcd, shared by the keys that are written within the same minute, as kube-apiserver shares them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from mooring.clock import Clock
from mooring.errors import StorageError
from mooring.storage.etcd import messages
from mooring.storage.etcd.connection import READ_SECONDS, EtcdConnection, deadline

SHARED_SECONDS = 60
"""A lease serves the writes of so many seconds, and lives so much longer than the keys need."""
SHARED_KEYS = 1000
"""Keys of one lease: their deletion is one revision, which a watch delivers at once."""


@dataclass(slots=True)
class _Lease:
    number: int
    ends: float
    """On the monotonic clock."""
    keys: int = 0


class Leases:
    """The newest lease of each life time."""

    def __init__(self, connection: EtcdConnection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._newest: dict[int, _Lease] = {}
        self._granting = asyncio.Lock()

    async def lease(self, ttl: int, end: float) -> int:
        """Return the id of a lease that lives for `ttl` seconds or longer; 0 when `ttl` is 0.

        Raises StorageError when etcd has not granted one until `end` of the loop's clock, to this caller or to those before it.
        """
        if not ttl:
            return 0
        try:
            async with asyncio.timeout_at(min(end, deadline(READ_SECONDS))), self._granting:
                return await self._shared(ttl, end)
        except TimeoutError:
            raise StorageError("etcd cannot be reached: it grants no lease") from None

    async def _shared(self, ttl: int, end: float) -> int:
        now = self._clock.monotonic()
        found = self._newest.get(ttl)
        if found is None or found.ends < now + ttl or found.keys >= SHARED_KEYS:
            request = messages.LeaseGrantRequest(TTL=ttl + SHARED_SECONDS)
            response = await self._connection.call(messages.LEASE_GRANT, request, end=end)
            found = self._newest[ttl] = _Lease(response.ID, now + response.TTL)
        found.keys += 1
        return found.number

    def forget(self, number: int) -> None:
        """Forget a lease that etcd does not have any more."""
        self._newest = {ttl: lease for ttl, lease in self._newest.items() if lease.number != number}
