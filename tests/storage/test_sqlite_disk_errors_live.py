"""Errors of the disk at each kind of operation, in processes whose file operations fail (rule 9, docs/faults.md, docs/adr/0074)."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from mooring.clock import SystemClock
from mooring.errors import StorageError
from mooring.storage.sqlite.database import explain, stored_nothing
from mooring.storage.sqlite.driver import SqliteStorage
from tests.support.faultlib.rules import Faults

HEAD = """
import asyncio, errno, logging, os, signal, sys
from pathlib import Path
from mooring.clock import SystemClock
from mooring.errors import StorageError, UnknownOutcomeError
from mooring.storage.contract import KeyExistsError, RevisionMismatchError
from mooring.storage.sqlite import driver
from mooring.storage.sqlite.driver import SqliteStorage
from tests.support.faultlib.rules import Faults
from tests.support.manualclock import ManualClock

faults, path = Faults(Path(sys.argv[1])), Path(sys.argv[2])
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")

async def refused(call):
    try:
        return await call
    except StorageError as error:
        return error
"""
TAIL = "\nasyncio.run(main(SqliteStorage(path, SystemClock())))\n"


class Child:
    """Runs programs in processes whose file operations can fail."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "mooring.db"
        self._faults = Faults(directory / "faults")

    def run(self, program: str, code: int = 0) -> str:
        """Run `async main(store)`, which has `faults`. Return its output."""
        done = subprocess.run(
            [sys.executable, "-c", HEAD + program + TAIL, self._faults.file, self.path],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **self._faults.environment},
        )
        assert done.returncode == code, done.stderr
        self._faults.clear()
        return done.stdout

    def stored(self) -> dict[str, bytes]:
        """Return what a process that opens the file finds."""

        async def read() -> dict[str, bytes]:
            store = SqliteStorage(self.path, SystemClock())
            await store.open()
            try:
                return {entry.key: entry.value for entry in (await store.range("/")).entries}
            finally:
                await store.close()

        return asyncio.run(read())


@pytest.fixture
def child(tmp_path: Path) -> Child:
    return Child(tmp_path)


def test_a_commit_that_may_be_stored_has_an_unknown_outcome_and_ends_the_use_of_the_file(child: Child) -> None:
    output = child.run(
        """
async def main(store):
    await store.open()
    kept = await store.create("/kept", b"1")
    faults.fail("fsync", "*/mooring.db-wal", errno.EIO, times=1)
    outcomes = await asyncio.gather(
        store.update("/kept", b"2", expected=kept.revision), store.create("/new", b"v"), store.create("/kept", b"3"),
        return_exceptions=True)
    assert [type(one) for one in outcomes] == [UnknownOutcomeError, UnknownOutcomeError, StorageError], outcomes
    assert "mooring.db failed (SQLITE_IOERR_FSYNC), and may be stored nevertheless" in str(outcomes[0])
    assert store.failed.is_set()
    assert "this process ends" in store.problem
    later = [await refused(call) for call in (store.create("/later", b"v"), store.compact(2), store.advance(99))]
    assert [type(one) for one in later] == [StorageError] * 3, later
    assert await store.get("/kept") == kept
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
""",
        code=-9,
    )
    assert output.count("CRITICAL") == 1
    stored = child.stored()
    assert stored in ({"/kept": b"1"}, {"/kept": b"2", "/new": b"v"})  # the group is there whole, or not at all
    assert "/later" not in stored


@pytest.mark.parametrize("call", ["store.compact(2)", "store.advance(99)"])
def test_a_commit_of_a_compaction_that_may_be_stored_ends_the_use_of_the_file(child: Child, call: str) -> None:
    child.run(
        f"""
async def main(store):
    await store.open()
    await store.create("/kept", b"1")
    faults.fail("fsync", "*/mooring.db-wal", errno.EIO, times=1)
    assert type(await refused({call})) is UnknownOutcomeError
    assert store.failed.is_set()
    assert type(await refused(store.create("/later", b"v"))) is StorageError
    await store.close()
"""
    )
    assert child.stored() == {"/kept": b"1"}


@pytest.mark.parametrize(
    ("operation", "error"), [("write", "EIO"), ("write", "ENOSPC"), ("write", "EDQUOT")], ids=lambda value: value
)
def test_a_commit_that_stores_nothing_says_so_and_the_next_one_succeeds(
    child: Child, operation: str, error: str
) -> None:
    """The mark of the commit is in the last page that is written: a page that is not written leaves nothing."""
    child.run(
        f"""
async def main(store):
    await store.open()
    await store.create("/kept", b"1")
    for skip in range(3):
        rule = faults.fail("{operation}", "*/mooring.db-wal", errno.{error}, skip=skip, times=1)
        assert type(await refused(store.create("/no", b"v" * 9000))) is StorageError
        assert faults.matched(rule) == 1
        assert not store.failed.is_set()
        assert store.refuses_writes
        assert store.alarm.startswith("the last write failed: the database file ")
    assert await store.get("/no") is None
    await store.create("/yes", b"1")
    assert (store.refuses_writes, store.alarm) == (False, "")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
""",
        code=-9,
    )
    assert child.stored() == {"/kept": b"1", "/yes": b"1"}


def test_a_write_of_another_worker_ends_the_alarm_of_a_failed_write(child: Child) -> None:
    child.run(
        """
async def main(store):
    await store.open()
    clock = ManualClock()
    idle = SqliteStorage(path, clock)
    await idle.open()
    watched = asyncio.ensure_future(anext(idle.watch("/", after=await idle.revision())))
    await asyncio.sleep(0)
    faults.fail("write", "*/mooring.db-wal", errno.ENOSPC)
    await refused(idle.create("/no", b"v" * 9000))
    assert idle.refuses_writes
    faults.clear()
    await store.create("/yes", b"1")
    await clock.advance(driver.POLL_SECONDS)
    assert [change.key for change in await watched] == ["/yes"]
    assert (idle.refuses_writes, idle.alarm) == (False, "")
    await idle.close()
    await store.close()
"""
    )


def test_what_a_start_recovers_is_on_the_disk_before_it_is_used(child: Child) -> None:
    """After an fsync that failed, the write-ahead log may be in memory alone, and a later fsync reports success (docs/adr/0074)."""
    child.run(
        """
async def main(store):
    await store.open()
    await store.create("/kept", b"1" * 9000)
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
""",
        code=-9,
    )
    child.run(
        """
async def main(store):
    written = faults.fail("fsync", "*/mooring.db", errno.EIO)
    failed = await refused(store.open())
    assert "the disk reports an error" in str(failed), failed
    assert faults.matched(written)
    faults.clear()
    await store.open()
    assert b"1" * 4000 in path.read_bytes()
    await store.close()
"""
    )


def test_a_checkpoint_that_fails_is_in_the_log_the_alarm_and_the_counters(child: Child) -> None:
    output = child.run(
        """
async def main(store):
    clock = ManualClock()
    store = SqliteStorage(path, clock)
    await store.open()
    await store.create("/a", b"v")

    async def half_a_minute(key):
        await store.create(key, b"v")
        for _ in range(driver.CHECKPOINT_LOOKS):
            await clock.advance(driver.LOOK_SECONDS)

    async def until(condition):
        while not condition():
            await asyncio.sleep(0.001)

    rule = faults.fail("write", "*/mooring.db", errno.EIO)
    await half_a_minute("/b")
    await until(lambda: store.counters.checkpoint_failures == 1)
    assert "nothing is lost, but it grows" in store.alarm, store.alarm
    assert not store.problem
    await half_a_minute("/c")
    await until(lambda: store.counters.checkpoint_failures == 2)
    assert faults.matched(rule) >= 2
    faults.clear()
    await half_a_minute("/d")
    await until(lambda: not store.alarm)
    assert store.counters.checkpoint_failures == 2
    await store.close()
"""
    )
    assert output.count("ERROR the write-ahead log could not be copied") == 1, output


def test_a_checkpoint_that_failed_is_tried_again_although_nothing_was_written(child: Child) -> None:
    child.run(
        """
async def main(store):
    clock = ManualClock()
    store = SqliteStorage(path, clock)
    await store.open()
    await store.create("/a", b"v")
    faults.fail("write", "*/mooring.db", errno.EIO)
    for _ in range(driver.CHECKPOINT_LOOKS):
        await clock.advance(driver.LOOK_SECONDS)
    while not store.alarm:
        await asyncio.sleep(0.001)
    faults.clear()
    for _ in range(driver.CHECKPOINT_LOOKS):
        await clock.advance(driver.LOOK_SECONDS)
    async with asyncio.timeout(30):
        while store.alarm:
            await asyncio.sleep(0.001)
    await store.close()
"""
    )


def test_an_error_while_reading_says_so_and_a_restart_reads_again(child: Child) -> None:
    child.run(
        """
async def main(store):
    await store.open()
    await asyncio.gather(*(store.create(f"/{n}", b"v" * 3000) for n in range(2000)))
    await store.close()
    await store.open()
    faults.fail("read", "*/mooring.db*", errno.EIO)
    for call in (lambda: store.get("/1500"), lambda: store.range("/"), lambda: anext(store.watch("/", after=1))):
        failed = await refused(call())
        assert "disk reported an error" in str(failed), failed
        assert "start the server again, which reads it again" in str(failed), failed
        assert "afresh" not in str(failed)
    await store.close()
    assert "start the server again" in str(await refused(store.open()))
    faults.clear()
    await store.open()
    assert (await store.get("/1500")).value == b"v" * 3000
    await store.close()
"""
    )


CODES = {
    "SQLITE_FULL": True,
    "SQLITE_READONLY": True,
    "SQLITE_BUSY": True,
    "SQLITE_IOERR_WRITE": True,
    "SQLITE_IOERR_FSYNC": False,
    "SQLITE_IOERR_SHMMAP": False,
    "SQLITE_NOMEM": False,
    "SQLITE_IOERR": False,
}


@pytest.mark.parametrize(("name", "certain"), CODES.items(), ids=CODES)
def test_which_failed_commits_have_certainly_stored_nothing(name: str, certain: bool) -> None:
    error = sqlite3.OperationalError("x")
    error.sqlite_errorcode = getattr(sqlite3, name)
    assert stored_nothing(error) is certain


def test_an_error_without_a_code_is_not_certain() -> None:
    assert not stored_nothing(sqlite3.OperationalError("x"))
    assert isinstance(explain(sqlite3.OperationalError("x"), Path("/x")), StorageError)
