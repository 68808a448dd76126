"""Worker processes of a live server, as /proc shows them."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from mooring.client.cluster import ClusterClient
from tests.support.liveserver import LiveServer
from tests.support.polling import eventually

ESTABLISHED = "01"
WORKERS = 2


def worker_pids(server: LiveServer) -> list[int]:
    """Return the processes of the workers, oldest first."""
    parent = server.process.pid
    try:
        return sorted(map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split()))
    except FileNotFoundError:
        return []


def connections_by_worker(server: LiveServer) -> Counter[int]:
    """Return the number of client connections that each worker holds; those that none has accepted are left out."""
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == ESTABLISHED and int(fields[1].rpartition(":")[2], 16) == server.port:
            inodes.add(f"socket:[{fields[9]}]")
    held: Counter[int] = Counter()
    for pid in worker_pids(server):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                held[pid] += os.readlink(descriptor) in inodes
    return held


@asynccontextmanager
async def clients_of_workers(server: LiveServer, each: int = 1) -> AsyncIterator[list[ClusterClient]]:
    """Yield clients that hold a connection, so many to each worker, in turns."""
    async with AsyncExitStack() as stack:
        # ready is a server whose first worker answers; the other may still be started
        await asyncio.to_thread(eventually, lambda: len(worker_pids(server)) == WORKERS, server)
        held: dict[int, list[ClusterClient]] = {pid: [] for pid in worker_pids(server)}
        while min(map(len, held.values())) < each:
            before = connections_by_worker(server)
            client = await stack.enter_async_context(server.client())
            await client.get("namespaces", "default")
            (accepted,) = connections_by_worker(server) - before
            held[accepted].append(client)
        yield [clients[n] for n in range(each) for clients in held.values()]
