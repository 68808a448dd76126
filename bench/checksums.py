"""Processor time of the checksums of records, beside that of the creates that wrote them.

Rules kept here: the checksums are computed again, in this process, over the records that the creates left in the database. The
processor time of a create is that of the whole server process: with one client a commit has one record, with 16 it has several.
"""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.denylist import Load, cpu_seconds
from mooring.storage.sqlite.record import checksum

if TYPE_CHECKING:
    from bench.servers import Server

CREATES = 3_000
WARM = 300
CLIENTS = (1, 16)
REPEATS = 20
"""Computations of each checksum: one alone is shorter than what the clock can tell."""
_NEWEST = (
    "SELECT revision, CAST(key AS BLOB), created, prior, value FROM log"
    " WHERE key LIKE '/registry/secrets/default/%' ORDER BY revision DESC LIMIT ?"
)


def rows(
    load: Load,
    start: Callable[[Path], AbstractContextManager[Server]],
    folder: Path,
    runs: int,
    say: Callable[[str], None],
) -> Iterator[tuple[str, str, str]]:
    """Yield (work, wanted, figure) for each number of clients."""
    data = folder / "data"
    with start(data) as running:
        for clients in CLIENTS:
            _create(load, running, WARM, clients)
            creates, checksums = [], []
            for _ in range(runs):
                say(f"checksums of creates by {clients} clients")
                before = cpu_seconds(running)
                _create(load, running, CREATES, clients)
                creates.append((cpu_seconds(running) - before) / CREATES * 1e6)
                checksums.append(_microseconds(_records(data / "mooring.db")))
            create, crc = statistics.median(creates), statistics.median(checksums)
            many = "1 client" if clients == 1 else f"{clients} clients"
            figure = f"{crc:.1f} µs, {create:.0f} µs: {crc / create * 100:.2f} %"
            yield f"CPU time of a checksum, and of the create by {many}", "≤ 2 %", figure


def _create(load: Load, running: Server, creates: int, clients: int) -> None:
    admin = ("-cert", str(running.data / "admin.crt"), "-key", str(running.data / "admin.key"))
    load(running, "-mode", "create", "-n", str(creates), "-c", str(clients), *admin, runs=1)


def _records(path: Path) -> list[tuple[Any, ...]]:
    """Return the records that the last creates wrote."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        found = connection.execute(_NEWEST, (CREATES,)).fetchall()
    assert len(found) == CREATES
    return found


def _microseconds(records: list[tuple[Any, ...]]) -> float:
    """Return the processor time of one checksum."""
    before = time.thread_time()
    for _ in range(REPEATS):
        for record in records:
            checksum(*record)
    return (time.thread_time() - before) / (REPEATS * len(records)) * 1e6
