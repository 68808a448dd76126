"""Leases of etcd, shared by the keys that are written within the same minute, as kube-apiserver shares them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from mooring.clock import Clock
from mooring.storage.etcd import messages
from mooring.storage.etcd.connection import Connection

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

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._newest: dict[int, _Lease] = {}
        self._granting = asyncio.Lock()

    async def lease(self, ttl: int) -> int:
        """Return the id of a lease that lives for `ttl` seconds or longer; 0 when `ttl` is 0. Raises StorageError."""
        if not ttl:
            return 0
        async with self._granting:
            now = self._clock.monotonic()
            found = self._newest.get(ttl)
            if found is None or found.ends < now + ttl or found.keys >= SHARED_KEYS:
                response = await self._connection.call(
                    messages.LEASE_GRANT, messages.LeaseGrantRequest(TTL=ttl + SHARED_SECONDS)
                )
                found = self._newest[ttl] = _Lease(response.ID, now + response.TTL)
            found.keys += 1
            return found.number

    def forget(self, number: int) -> None:
        """Forget a lease that etcd does not have any more."""
        self._newest = {ttl: lease for ttl, lease in self._newest.items() if lease.number != number}
