"""`kill -9` of a move, a restore and a save between any two writes: no server starts on the rest, and a second run completes it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path

import pytest

from mooring.clock import SystemClock
from mooring.storage.keyspace import RESTORES
from mooring.storage.sqlite.driver import SqliteStorage
from tests.support import forkserver
from tests.support.commandline import CommandLine, mooring

__all__ = ["mooring"]
ENTRIES = 150
PATIENCE = 60.0

DYING = """
import os, signal, sys

left = int(sys.argv.pop(1))

from mooring.storage.sqlite.connection import LogWriter

def counted(function):
    def call(*args):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args)
    return call

LogWriter.commit = counted(LogWriter.commit)

from mooring.cli.main import main
main()
"""
"""`mooring` that dies just before its n-th commit."""
DYING_WRITING = DYING.replace("from mooring.storage.sqlite.connection import LogWriter", "").replace(
    "LogWriter.commit = counted(LogWriter.commit)", "os.fsync = counted(os.fsync)"
)
"""`mooring` that dies just before its n-th fsync."""


async def fill(path: Path, more: int = 0) -> None:
    store = SqliteStorage(path, SystemClock())
    await store.open()
    await asyncio.gather(
        *(store.create(f"/registry/configmaps/default/{n:04}", b"%d" % n * 50) for n in range(more, ENTRIES + more))
    )
    await store.close()


async def content(path: Path) -> tuple[dict[str, bytes], int]:
    """Return keys and values, and the least revision of an entry."""
    store = SqliteStorage(path, SystemClock())
    await store.open()
    entries = (await store.range("")).entries
    await store.close()
    return {entry.key: entry.value for entry in entries}, min(entry.revision for entry in entries)


def killed_at(program: str, n: int, arguments: tuple[str, ...]) -> bool:
    """Run the command until its n-th write. Return whether it was killed there; else it has succeeded."""
    process = forkserver.Process(["-c", program, str(n), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output, _ = process.communicate(timeout=PATIENCE)
    if process.returncode != -signal.SIGKILL:
        assert process.returncode == 0, output
        return False
    return True


@pytest.mark.crash
@pytest.mark.parametrize("command", ["datastore migrate", "snapshot restore"])
def test_a_copy_that_is_killed_is_refused_by_servers_and_completed(
    tmp_path: Path, mooring: CommandLine, command: str
) -> None:
    source, snapshot = tmp_path / "source.db", tmp_path / "a.snapshot"
    asyncio.run(fill(source))
    mooring.done("snapshot", "save", str(snapshot), "--storage", f"sqlite:{source}")
    wanted, _ = asyncio.run(content(source))
    refusals = 0
    for n in range(1, 100):
        target = tmp_path / f"{n}.db"
        run: tuple[str, ...] = ("snapshot", "restore", str(snapshot), "--storage", f"sqlite:{target}")
        if command == "datastore migrate":
            run = ("datastore", "migrate", f"sqlite:{source}", f"sqlite:{target}")
        if not killed_at(DYING, n, run):
            assert n > 5, "a copy has more commits than that"
            break
        if refusals < 1 and n > 3:  # the mark is there from the first commit to the last
            started = mooring(
                "server", "--data-dir", str(tmp_path / "data"), "--bind-address", "127.0.0.1", "--secure-port", "0",
                "--storage", f"sqlite:{target}",
            )  # fmt: skip
            assert started.code == 1
            assert started.err.splitlines()[-1] == (
                f"Error: the store is incomplete: mooring {command} into it has not ended; run it again to its end"
            )
            assert mooring("snapshot", "save", "--storage", f"sqlite:{target}", str(tmp_path / "b")).code == 1
            refusals += 1
        result = json.loads(mooring.done(*run, "-o", "json"))
        assert result["entries"] == ENTRIES
        found, least = asyncio.run(content(target))
        assert (found.pop(RESTORES, None) is not None) is (command == "snapshot restore")
        assert found == wanted
        assert least > ENTRIES + 1
    assert refusals


@pytest.mark.crash
def test_a_save_that_is_killed_leaves_no_snapshot_and_its_rest_is_removed(tmp_path: Path, mooring: CommandLine) -> None:
    source, directory = tmp_path / "source.db", tmp_path / "snapshots"
    asyncio.run(fill(source))
    directory.mkdir()
    run = ("snapshot", "save", str(directory / "a.snapshot"), "--storage", f"sqlite:{source}")
    assert killed_at(DYING_WRITING, 1, run)
    assert [path.suffix for path in directory.iterdir()] == [".mooring-tmp"]
    mooring.done(*run)
    assert [path.name for path in directory.iterdir()] == ["a.snapshot"]
    mooring.done("snapshot", "verify", str(directory / "a.snapshot"))
