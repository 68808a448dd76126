"""Cost of a long denylist: CPU time of an authenticated GET, memory and start of a server, with and without revocations.

Rules kept here: entries are written into the store of a stopped server, half of them for serial numbers and half for keys. CPU
time is that of the server process, because it varies less than the rate. Both servers run at once, and the runs alternate.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from mooring.api.mooring.certificaterevocation import KIND, entry_name
from mooring.clock import SystemClock, rfc3339
from mooring.storage.sqlite.driver import SqliteStorage

if TYPE_CHECKING:
    from bench.servers import Server

ENTRIES = 100_000
SIDE_BY_SIDE = 1000
REQUESTS = 10_000
WARM = 1000
SETTLE_SECONDS = 15.0
"""Seconds after the start until the controllers have planned every entry and the first CRL is signed."""
LEAST_RUNS = 5
"""Pairs of runs: the figures differ by less than they vary."""
_TICKS = os.sysconf("SC_CLK_TCK")

Start = Callable[[Path], AbstractContextManager["Server"]]
Load = Callable[..., dict[str, float]]


def fill(data: Path, entries: int = ENTRIES) -> None:
    """Write revocations into the store of a stopped server."""
    now = SystemClock().now()
    created, expires = rfc3339(now), rfc3339(now + timedelta(days=365))

    def objects() -> Iterator[tuple[str, bytes]]:
        for number in range(entries):
            digest = hashlib.sha256(str(number).encode()).hexdigest()
            subject = {"publicKey": f"sha256:{digest}"} if number % 2 else {"serialNumber": f"1{digest[:31]}"}
            name = entry_name(subject)
            metadata = {"name": name, "uid": digest[:36], "generation": 1, "creationTimestamp": created}
            spec = {**subject, "reason": "superseded", "expiresAt": expires}
            obj = {
                "kind": KIND.resource.kind,
                "apiVersion": KIND.resource.api_version,
                "metadata": metadata,
                "spec": spec,
            }
            yield KIND.key("", name), json.dumps(obj).encode()

    async def write() -> None:
        store = SqliteStorage(data / "mooring.db", SystemClock())
        await store.open()
        try:
            pending = list(objects())
            for start in range(0, len(pending), SIDE_BY_SIDE):
                await asyncio.gather(*(store.create(*one) for one in pending[start : start + SIDE_BY_SIDE]))
        finally:
            await store.close()

    asyncio.run(write())


def cpu_seconds(running: Server) -> float:
    """Return the CPU time that the server process has used."""
    fields = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _microseconds(load: Load, running: Server, path: str) -> float:
    """Return the CPU time of one GET with a client certificate, in microseconds."""
    arguments = ("-cert", str(running.data / "admin.crt"), "-key", str(running.data / "admin.key"), "-path", path)
    load(running, "-n", str(WARM), *arguments, runs=1)
    before = cpu_seconds(running)
    load(running, "-n", str(REQUESTS), *arguments, runs=1)
    return (cpu_seconds(running) - before) / REQUESTS * 1e6


def rows(
    load: Load, start: Start, folder: Path, path: str, runs: int, say: Callable[[str], None]
) -> Iterator[tuple[str, str]]:
    """Yield (work, figure)."""
    empty, long = folder / "empty" / "data", folder / "long" / "data"
    for data in (empty, long):
        data.parent.mkdir()
        with start(data):
            pass
    say(f"writing {ENTRIES:,} revocations")
    fill(long)
    say(f"start with {ENTRIES:,} revocations")
    with start(empty) as without, start(long) as with_entries:
        time.sleep(SETTLE_SECONDS)
        added = with_entries.rss_mib - without.rss_mib
        pairs = []
        for _ in range(max(runs, LEAST_RUNS)):
            say(f"GET with {ENTRIES:,} revocations and without")
            pairs.append((_microseconds(load, without, path), _microseconds(load, with_entries, path)))
        none, many = (statistics.median(figures) for figures in zip(*pairs, strict=True))
        yield f"CPU time of a GET without and with {ENTRIES:,} revocations", f"{none:.0f} µs, {many:.0f} µs"
        launch = f"{with_entries.ready_seconds:.2f} s, {without.ready_seconds:.2f} s without"
        yield f"launch → /readyz ok with {ENTRIES:,} revocations", launch
        yield f"memory of {ENTRIES:,} revocations", f"{added:.0f} MiB, {added * (1 << 20) / ENTRIES / 1000:.1f} kB each"
