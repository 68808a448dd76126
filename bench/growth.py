"""Cost of growth: start, memory and requests of a server with many stored objects, and with many idle watches beside it.

Rules kept here:
* Objects are small Secrets, written into the store of a stopped server, in 100 namespaces.
* CPU time is that of the server process, because it varies less than the rate. An empty and a full server run at once, and the runs
  alternate. The idle watches are those of one HTTP/2 client, as client-go opens them.
* `ready` is the CPU time until `/readyz` answers, `settled` the time until the controllers have planned every object.
"""

from __future__ import annotations

import asyncio
import base64
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from bench.denylist import Load, cpu_seconds
from bench.idlewatches import held
from mooring.clock import SystemClock
from mooring.storage.sqlite.driver import SqliteStorage

if TYPE_CHECKING:
    from bench.servers import Server

OBJECTS = 100_000
MOST_OBJECTS = 1_000_000
WATCHES = 5_000
NAMESPACES = 100
SIDE_BY_SIDE = 1000
REQUESTS = 10_000
CREATES = 3_000
WARM = 1_000
LEAST_RUNS = 5
"""Pairs of runs: the figures differ by less than they vary."""
QUIET_SECONDS = 2.0
SETTLE_SECONDS = 120.0
"""Seconds without work after which a server has settled, and the longest wait for that."""
MOST_SECONDS = 180.0
"""Seconds within which a server with `MOST_OBJECTS` must be ready."""
LIST_PATH = "/api/v1/secrets?limit=500"

Say = Callable[[str], None]
Start = Callable[..., AbstractContextManager["Server"]]


def secret(number: int, random: Random) -> tuple[str, bytes]:
    """Return key and value of one Secret of 370 bytes."""
    namespace, name = f"growth-{number % NAMESPACES:03d}", f"growth-{number:07d}"
    uid, data = uuid.UUID(int=random.getrandbits(128)), base64.b64encode(random.randbytes(90)).decode()
    value = (
        f'{{"kind":"Secret","apiVersion":"v1","metadata":{{"name":"{name}","namespace":"{namespace}","uid":"{uid}",'
        f'"creationTimestamp":"2026-01-02T03:04:05Z"}},"data":{{"value":"{data}"}},"type":"Opaque"}}'
    )
    return f"/registry/secrets/{namespace}/{name}", value.encode()


def fill(data: Path, objects: int) -> None:
    """Write Secrets into the store of a stopped server."""

    async def write() -> None:
        random = Random(1)
        store = SqliteStorage(data / "mooring.db", SystemClock())
        await store.open()
        try:
            for start in range(0, objects, SIDE_BY_SIDE):
                batch = [secret(number, random) for number in range(start, min(start + SIDE_BY_SIDE, objects))]
                await asyncio.gather(*(store.create(*one) for one in batch))
        finally:
            await store.close()

    asyncio.run(write())


def settle(running: Server) -> float:
    """Wait until the server has no work left, and return the CPU time that it has used since its launch."""
    deadline = time.monotonic() + SETTLE_SECONDS
    used = cpu_seconds(running)
    while time.monotonic() < deadline:
        time.sleep(QUIET_SECONDS)
        before, used = used, cpu_seconds(running)
        if used - before < QUIET_SECONDS / 50:
            break
    return used


def _microseconds(load: Load, running: Server, requests: int, *arguments: str) -> float:
    """Return the CPU time of one request with a client certificate, in microseconds."""
    admin = ("-cert", str(running.data / "admin.crt"), "-key", str(running.data / "admin.key"))
    load(running, "-n", str(min(WARM, requests)), *admin, *arguments, runs=1)
    before = cpu_seconds(running)
    load(running, "-n", str(requests), *admin, *arguments, runs=1)
    return (cpu_seconds(running) - before) / requests * 1e6


def _compared(figures: list[tuple[float, float]], unit: str = "µs") -> str:
    empty, full = (statistics.median(each) for each in zip(*figures, strict=True))
    return f"{empty:.0f} {unit}, {full:.0f} {unit}: {(full / empty - 1) * 100:+.0f} %"


def rows(
    load: Load, start: Start, binary: Path, folder: Path, path: str, runs: int, say: Say
) -> Iterator[tuple[str, str, str]]:
    """Yield (work, wanted, figure) for `OBJECTS` objects and `WATCHES` watches beside an empty server."""
    empty, full = folder / "empty" / "data", folder / "full" / "data"
    for data in (empty, full):
        data.parent.mkdir()
        with start(data):
            pass
    say(f"writing {OBJECTS:,} Secrets")
    fill(full, OBJECTS)
    say(f"start with {OBJECTS:,} Secrets")
    with start(empty) as without, start(full) as with_objects:
        settled = settle(with_objects) - settle(without)
        yield f"CPU time of the start and the first plans, of {OBJECTS:,} Secrets", "≤ 5 s", f"{settled:.1f} s"
        yield _memory(OBJECTS, with_objects.rss_mib - without.rss_mib)
        with held(binary, with_objects, WATCHES):
            reads: list[tuple[float, float]] = []
            creates: list[tuple[float, float]] = []
            for _ in range(max(runs, LEAST_RUNS)):
                say(f"requests with {OBJECTS:,} Secrets and {WATCHES:,} watches, and without")
                for requests, figures, arguments in (
                    (REQUESTS, reads, ("-path", path)),
                    (CREATES, creates, ("-mode", "create")),
                ):
                    alone = _microseconds(load, without, requests, *arguments)
                    figures.append((alone, _microseconds(load, with_objects, requests, *arguments)))
        beside = f"without and with {OBJECTS:,} Secrets and {WATCHES:,} idle watches"
        yield f"CPU time of a GET {beside}", "≤ +10 %", _compared(reads)
        yield f"CPU time of a create {beside}", "≤ +10 %", _compared(creates)


def most(load: Load, start: Start, folder: Path, path: str, say: Say) -> Iterator[tuple[str, str, str]]:
    """Yield (work, wanted, figure) for a server with `MOST_OBJECTS` objects."""
    data = folder / "most" / "data"
    data.parent.mkdir()
    with start(data) as running:
        before = running.rss_mib
    say(f"writing {MOST_OBJECTS:,} Secrets")
    fill(data, MOST_OBJECTS)
    say(f"start with {MOST_OBJECTS:,} Secrets")
    what = f"with {MOST_OBJECTS:,} Secrets"
    with start(data, within=MOST_SECONDS) as running:
        yield f"launch → /readyz ok {what}", "", f"{running.ready_seconds:.1f} s"
        yield f"CPU time of the start and the first plans {what}", "", f"{settle(running):.1f} s"
        yield _memory(MOST_OBJECTS, running.rss_mib - before)
        for work, arguments in (
            (f"GET {what}", ("-n", str(REQUESTS), "-path", path)),
            (f"durable create of a 1 kB Secret {what}", ("-mode", "create", "-n", str(CREATES))),
            (f"LIST of 500 {what}", ("-n", "100", "-c", "1", "-path", LIST_PATH)),
        ):
            say(work)
            admin = ("-cert", str(data / "admin.crt"), "-key", str(data / "admin.key"))
            result = load(running, *admin, *arguments)
            yield work, "", f"{result['per_s']:,.0f} /s, p50 {result['p50_ms']:.1f} ms"


def _memory(objects: int, mib: float) -> tuple[str, str, str]:
    size = len(secret(0, Random(1))[1])
    each = mib * (1 << 20) / objects
    return f"memory of {objects:,} Secrets of {size} bytes", "", f"{mib:.0f} MiB, {each:.0f} bytes each"
