"""One seed of the SQLite driver: its processes under the faults, then a process without faults that reads everything back."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from mooring.storage.sqlite.verification import verify_file
from tests.faults.disk.history import Final, Keys, replay
from tests.faults.disk.plans import End, Plan, Subject
from tests.faults.disk.storeprogram import open_store, tag_of, value_of
from tests.support import forkserver
from tests.support.faultlib.rules import Faults

PATIENCE = 60.0


def run_store_seed(plan: Plan, directory: Path) -> Sequence[str]:
    """Run the plan in an empty directory. Return what was wrong."""
    (directory / "data").mkdir()
    database, faults = directory / "data/mooring.db", Faults(directory / "faults")
    names = "ab" if plan.subject is Subject.TWO_PROCESSES else "a"
    processes = [_Process(plan, database, faults, directory / f"record-{name}", name) for name in names]
    for process in processes:
        process.await_ready()
    faults.clear()
    findings: list[str] = []
    keys = Keys()
    for process in reversed(processes):  # the first one may meet a fault before its end
        process.go_on()
        findings += process.ended(plan)
        written = Keys()
        for event in replay(written, process.record.read_text().splitlines()):
            if "finding" in event:
                findings.append(event["finding"])
        keys.merge(written)
    faults.clear()
    asyncio.run(_read_back(plan, database, keys))
    if plan.subject is Subject.ENCRYPTED_STORE and b"|/a/" in database.read_bytes():
        findings.append("a value is stored as it is, without encryption")
    report = verify_file(database)
    return [*findings, *keys.findings, *(f"damaged: {one}" for one in report.damage)]


class _Process:
    def __init__(self, plan: Plan, database: Path, faults: Faults, record: Path, name: str) -> None:
        self.record, self.name = record, name
        record.touch()
        reading, self._line = os.pipe()
        self._errors = record.with_suffix(".err")
        arguments = [str(database), str(faults.file), str(record), str(plan.seed), name]
        with self._errors.open("wb") as errors:
            self._process = forkserver.Process(
                ["-m", "tests.faults.disk.storeprogram", *arguments],
                stdin=reading,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **faults.environment},
            )
        os.close(reading)

    def await_ready(self) -> None:
        """Wait until the work under the fault has ended, or the process."""
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def go_on(self) -> None:
        """Say that the fault is over."""
        os.close(self._line)

    def ended(self, plan: Plan) -> list[str]:
        """Wait for the end. Return what was wrong with it."""
        try:
            code = self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            assert self._process.stdout is not None
            self._process.stdout.close()
        kill = plan.end is End.KILL or (plan.end is End.KILL_WITHIN and self.name == "a")
        if code == 0 or (kill and code == -signal.SIGKILL):
            return []
        return [f"process {self.name} ended with {code}: {self._errors.read_text()[-3000:]}"]


async def _read_back(plan: Plan, database: Path, keys: Keys) -> None:
    """Open the store as a restart does, judge what is there, and write."""
    _, store = open_store(database, plan.subject)
    await store.open()
    try:
        entries = (await store.range("/")).entries
        found = {entry.key: Final(tag_of(entry.value), entry.revision) for entry in entries}
        newest = await store.revision()
        keys.judge(found, newest)
        entry = await store.create("/restarted", value_of("/restarted:20"))
        if entry.revision <= newest:
            keys.findings.append(f"a write got revision {entry.revision} at {newest}")
    finally:
        await store.close()
