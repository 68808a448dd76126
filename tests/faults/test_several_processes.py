"""Processes on one SQLite file, killed and stopped while clients write, read and watch through all of them.

They are several servers, or one server with several workers. The judges of `tests.support.history` read the record of all
operations.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from mooring.client.cluster import ClusterClient
from tests.faults.workload import OneTry, Workload
from tests.support.killable import KillableServer, seeded, servers_on_one_store

PROCESSES = 3
CLIENTS = 8
WRITES = 400
ENOUGH = 50
"""Acknowledged writes in a run on a slow machine."""
STOPPED_SECONDS = 0.7
BETWEEN_SECONDS = 0.3


@pytest.mark.crash
def test_several_servers_give_one_history_while_they_are_killed_and_stopped(tmp_path: Path) -> None:
    servers = servers_on_one_store(tmp_path, PROCESSES)

    async def faults(moments: random.Random) -> None:
        order = [*servers, *servers]
        moments.shuffle(order)
        for n, server in enumerate(order):
            await asyncio.sleep(BETWEEN_SECONDS)
            if n % 2:
                server.kill()
                server.launch()
                await server.ready()
                continue
            server.pause()
            await asyncio.sleep(STOPPED_SECONDS)
            server.resume()

    check(servers, faults)


@pytest.mark.crash
def test_several_workers_give_one_history_while_they_are_killed_stopped_and_restarted(tmp_path: Path) -> None:
    server = KillableServer(tmp_path / "data", flags=("--workers", str(PROCESSES)))

    async def faults(moments: random.Random) -> None:
        assert server.process is not None
        for turn in range(2):
            await asyncio.sleep(BETWEEN_SECONDS)
            os.kill(moments.choice(children(server.process.pid)), signal.SIGKILL)
            await asyncio.sleep(BETWEEN_SECONDS)
            stopped = moments.choice(children(server.process.pid))
            os.kill(stopped, signal.SIGSTOP)
            await asyncio.sleep(STOPPED_SECONDS)
            os.kill(stopped, signal.SIGCONT)
            await asyncio.sleep(BETWEEN_SECONDS)
            if turn:
                server.kill()
                server.launch()
                await server.ready()
                continue
            before = children(server.process.pid)
            server.process.send_signal(signal.SIGHUP)
            while set(before) & set(children(server.process.pid)):
                await asyncio.sleep(0.05)

    check([server], faults, connections=PROCESSES)


def children(parent: int) -> list[int]:
    """Return the processes whose parent is `parent`, the oldest first."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            state, ppid = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(ppid) == parent and state != "Z":
                found.append(int(entry.name))
    return sorted(found)


def check(
    servers: Sequence[KillableServer], faults: Callable[[random.Random], Awaitable[None]], connections: int = 1
) -> None:
    """Run the workload beside `faults` and judge it. `connections` are the clients of one server that each user has."""
    moments = seeded()

    async def scenario() -> Workload:
        for server in servers:
            server.launch()
            await server.ready()
        opened: list[Callable[[], ClusterClient]] = [
            partial(server.client, OneTry()) for server in servers for _ in range(connections)
        ]
        workload = Workload(opened, moments)
        await workload.prepare()
        await workload.run(CLIENTS, WRITES, 2, partial(faults, moments))
        for server in servers:
            assert await server.stop() == 0
        return workload

    try:
        workload = asyncio.run(scenario())
    except BaseException:
        sys.stdout.write("\n----\n".join(server.log[-2000:] for server in servers))
        raise
    finally:
        for server in servers:
            server.kill()
    sys.stdout.write(f"{workload}\n")
    assert workload.findings() == []
    assert workload.acknowledged > ENOUGH
