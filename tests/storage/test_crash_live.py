"""`kill -9` during a burst of writes (rule 2): nothing acknowledged is lost, nothing is torn, revisions have no gap."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mooring.clock import SystemClock
from mooring.storage.sqlite.driver import SqliteStorage
from tests.support import storageprocess


@contextmanager
def killed_at_the_end(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    with process:
        try:
            yield process
        finally:
            process.kill()


def burst_until(path: Path, name: str, acknowledgements: int) -> dict[int, int]:
    """Start a burst, kill it the moment it acknowledged that many writes; return all it acknowledged (number → revision)."""
    command = [sys.executable, storageprocess.__file__, "write", str(path), name, "0", "16"]
    with killed_at_the_end(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(acknowledgements)]
        os.kill(process.pid, signal.SIGKILL)
        lines += process.stdout.readlines()  # what it said before it died
        assert process.wait() == -signal.SIGKILL
    return {int(n): int(revision) for n, revision in (line.split() for line in lines if line.endswith("\n"))}


async def check(path: Path, acknowledged: dict[str, dict[int, int]]) -> int:
    store = SqliteStorage(path, SystemClock())
    await store.open()
    entries = {entry.key: entry for entry in (await store.range("")).entries}
    for name, writes in acknowledged.items():
        for n, revision in writes.items():
            assert entries[f"/{name}/{n}"].revision == revision
    for key, entry in entries.items():
        _, writer, number = key.split("/")
        assert entry.value == storageprocess.value_of(writer, int(number))
    newest = await store.revision()
    assert sorted(entry.revision for entry in entries.values()) == list(range(2, newest + 1))
    if newest > 1:
        seen: list[int] = []
        async for batch in store.watch("", after=1):
            seen += [change.revision for change in batch]
            if seen[-1] == newest:
                break
        assert seen == list(range(2, newest + 1))
    await store.close()
    return newest


@pytest.mark.crash
def test_killed_again_and_again_a_store_keeps_all_it_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "mooring.db"
    acknowledged: dict[str, dict[int, int]] = {}
    for round_, moment in enumerate((1, 3, 17, 90, 333, 700, 1200, 2500)):
        acknowledged[f"r{round_}"] = burst_until(path, f"r{round_}", moment)
        assert len(acknowledged[f"r{round_}"]) >= moment
        newest = asyncio.run(check(path, acknowledged))
        assert newest > sum(map(len, acknowledged.values()))


@pytest.mark.crash
def test_a_process_killed_while_others_write_does_not_stop_them(tmp_path: Path) -> None:
    path = tmp_path / "mooring.db"
    command = [sys.executable, storageprocess.__file__, "write", str(path), "survivor", "3000", "8"]
    with killed_at_the_end(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as survivor:
        acknowledged = {name: burst_until(path, name, moment) for name, moment in (("a", 50), ("b", 5), ("c", 400))}
        lines = survivor.communicate(timeout=60)[0].splitlines()
    assert survivor.returncode == 0
    acknowledged["survivor"] = {int(n): int(revision) for n, revision in map(str.split, lines)}
    assert len(acknowledged["survivor"]) == 3000
    asyncio.run(check(path, acknowledged))


@pytest.mark.crash
def test_killed_while_compacting_a_store_goes_on_where_it_was(tmp_path: Path) -> None:
    program = """
import asyncio, os, signal, sys
from pathlib import Path
from mooring.clock import SystemClock
from mooring.storage.sqlite import connection
from mooring.storage.sqlite.driver import SqliteStorage

connection.SWEEP_REVISIONS = 20

async def main():
    store = SqliteStorage(Path(sys.argv[1]), SystemClock())
    await store.open()
    entry = await store.create("/a", b"0")
    for n in range(300):
        entry = await store.update("/a", b"%d" % n, expected=entry.revision)
    steps = 0
    sweep = connection.LogWriter.sweep
    def stepwise(self, oldest):
        nonlocal steps
        steps += 1
        if steps == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return sweep(self, oldest)
    connection.LogWriter.sweep = stepwise
    await store.compact(290)

asyncio.run(main())
"""
    path = tmp_path / "mooring.db"
    assert subprocess.run([sys.executable, "-c", program, str(path)], timeout=60).returncode == -signal.SIGKILL

    async def scenario() -> None:
        store = SqliteStorage(path, SystemClock())
        await store.open()
        assert await store.compacted() == 290
        for revision in range(290, 303):
            entry = await store.get("/a", revision=revision)
            assert entry is not None
            assert entry.value == b"%d" % (revision - 3)
        await store.compact(300)
        await store.close()

    asyncio.run(scenario())
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT min(revision), count(*) FROM log").fetchone() == (300, 3)
    connection.close()
