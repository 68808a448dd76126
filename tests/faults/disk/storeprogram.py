"""A program that writes to a SQLite store while operations on its files fail, and records what it wrote and every answer.

Arguments: the database, the file of the rules, the file of the record, the seed, and the name of this one of several processes.
When the work under the fault has ended it prints a line, and waits for one: the fault is over then, and it goes on without help.

Rules kept here:
* The store must go on by itself once the fault is over, unless it says that its process must end. The first write then succeeds.
* A watch delivers every write once, in order, with the value that was written.
* Caches and limits of the driver are small, so that a short life has every kind of file operation.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

from mooring.clock import SystemClock
from mooring.errors import StorageError, UnknownOutcomeError
from mooring.storage.contract import CompactedError, Entry, KeyExistsError, RevisionMismatchError, Storage
from mooring.storage.encryption.providers import Providers
from mooring.storage.encryption.storage import EncryptedStorage
from mooring.storage.sqlite import database, driver
from mooring.storage.sqlite.driver import SqliteStorage
from mooring.trust.encryption.configuration import GroupResource, parse
from tests.faults.disk.history import DONE, REFUSED, UNKNOWN
from tests.faults.disk.plans import End, Moment, Plan, Subject, plan_of
from tests.support.encryption import entry as resources
from tests.support.encryption import file, local
from tests.support.faultlib.rules import Faults

WRITERS = 3
STEPS = 8
"""Writes of each writer while the fault is there. Half of them come after it, if it passes by itself."""
KEYS = 3
"""Keys of each writer."""
SIZES = (20, 20, 300, 6000, 40_000)
VERIFICATIONS = 500
"""Slices of verification in which a whole pass ends for certain."""


def use_small_limits() -> None:
    """Let pages be read from the file again, spill before a commit, and be copied from the log often."""
    database.CACHE_KIBIBYTES = 32
    database.CHECKPOINT_PAGES = 30
    database.KEPT_WAL_BYTES = 64 * 1024
    database.BUSY_SECONDS = 2.0
    driver.LOOK_SECONDS = 0.01
    driver.CHECKPOINT_LOOKS = 2


def value_of(tag: str) -> bytes:
    """Return the value that a tag names, in which a torn write, or a value of another key, is visible."""
    size = int(tag.rpartition(":")[2])
    return (f"{tag}|" * (size // (len(tag) + 1) + 1)).encode()


def tag_of(value: bytes) -> str:
    """Return the tag of a value that was read."""
    tag = value.partition(b"|")[0].decode(errors="backslashreplace")
    return tag if tag.rpartition(":")[2].isdigit() and value == value_of(tag) else f"torn value {value[:60]!r}"


def open_store(path: Path, subject: Subject) -> tuple[SqliteStorage, Storage]:
    """Return the driver, and the store to use, which are not opened yet."""
    file_store = SqliteStorage(path, SystemClock())
    if subject is not Subject.ENCRYPTED_STORE:
        return file_store, file_store
    providers = Providers(parse(file(resources("secrets", local("aesgcm", "key1"))), "test"), SystemClock(), os.urandom)
    secrets = GroupResource("", "secrets")
    return file_store, EncryptedStorage(file_store, providers, dict.fromkeys(("", "/a", "/b"), secrets))


class Record:
    """Lines of the record, which a killed process leaves whole."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, **event: Any) -> None:
        os.write(self._descriptor, json.dumps(event).encode() + b"\n")

    def finding(self, text: str) -> None:
        self.add(finding=text)


class Program:
    """One life."""

    def __init__(self, plan: Plan, path: Path, faults: Faults, record: Record, name: str) -> None:
        self.plan, self.path, self.faults, self.record, self.name = plan, path, faults, record, name
        self.moments = random.Random(f"{plan.choices} {name}")
        self.arms = name == "a"
        self.failures = self.moments.choice((1, 1, 2, 5)) if self.arms and plan.end is End.KILL_WITHIN else 0
        """Failed writes until the program kills itself, before a later write can hide what the failed one left; 0: never."""
        self.entries: dict[str, Entry] = {}
        self.delivered: dict[int, tuple[str, str | None]] = {}
        self.watched_from = 0
        self.watched = asyncio.Event()
        self.acknowledged: dict[int, tuple[str, str | None]] = {}

    async def run(self) -> None:
        if self.arms and self.plan.moment is Moment.START:
            self.arm()
        opened = await self.opened()
        if opened is not None:
            await self.work(opened)
        fault_is_over()
        if opened is None and (opened := await self.opened()) is None:
            self.record.finding("the store did not open after the fault was over")
            return
        assert opened is not None
        file, store = opened
        if not file.failed.is_set():
            await self.recovered(file, store)
        if self.plan.end is End.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.arms and self.plan.moment is Moment.END:
            self.arm()
        await store.close()

    def arm(self) -> None:
        for fault in self.plan.faults:
            self.faults.fail(
                fault.operation, fault.pattern, fault.error, skip=fault.skip, times=fault.times, torn=fault.torn
            )

    async def opened(self) -> tuple[SqliteStorage, Storage] | None:
        file, store = open_store(self.path, self.plan.subject)
        try:
            await store.open()
        except StorageError as error:
            self.record.add(refused_start=str(error))
            return None
        return file, store

    async def work(self, opened: tuple[SqliteStorage, Storage]) -> None:
        _, store = opened
        jobs = [self.writer(store, n) for n in range(WRITERS)]
        if self.arms:
            jobs += [self.compactor(store), self.verifier(store)]
        watch = asyncio.create_task(self.watch(store))
        await asyncio.gather(*jobs)
        if self.plan.end is End.KILL_WITHIN and self.arms:
            os.kill(os.getpid(), signal.SIGKILL)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)

    async def writer(self, store: Storage, number: int) -> None:
        moment = self.moments.randrange(STEPS // 2)
        for step in range(STEPS):
            if self.arms and number == 0 and step == moment and self.plan.moment is Moment.WORK:
                self.arm()
            key = f"/{self.name}/{number}/{self.moments.randrange(KEYS)}"
            await self.write(store, key, step)
            await self.read(store, key)

    async def write(self, store: Storage, key: str, step: int) -> bool:
        """Write once. Return whether the write was acknowledged."""
        known = self.entries.get(key)
        value: str | None = f"{key}-{step}:{self.moments.choice(SIZES)}"
        if known is not None and self.moments.random() < 0.25:
            value = None
        self.record.add(key=key, write=value)
        try:
            if known is None:
                assert value is not None
                entry = await store.create(key, value_of(value))
            elif value is None:
                revision = await store.delete(key, expected=known.revision)
            else:
                entry = await store.update(key, value_of(value), expected=known.revision)
        except UnknownOutcomeError:
            self.record.add(key=key, outcome=UNKNOWN)
            self.count_failure()
            return False
        except (KeyExistsError, RevisionMismatchError) as error:
            self.record.add(key=key, outcome=REFUSED)
            self.record.finding(f"{key}: {error}, and has no other writer")
            return False
        except StorageError:
            self.record.add(key=key, outcome=REFUSED)
            self.count_failure()
            return False
        if value is None:
            del self.entries[key]
        else:
            self.entries[key], revision = entry, entry.revision
        self.acknowledged[revision] = key, value
        self.record.add(key=key, outcome=DONE, revision=revision)
        return True

    def count_failure(self) -> None:
        self.failures -= 1
        if self.failures == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    async def read(self, store: Storage, key: str) -> bool:
        try:
            entry = await store.get(key)
        except StorageError:
            return False
        self.record.add(key=key, read=None if entry is None else tag_of(entry.value))
        return True

    async def compactor(self, store: Storage) -> None:
        for _ in range(2):
            await asyncio.sleep(0.01)
            try:
                await store.compact(max(1, await store.revision() - 5))
            except StorageError:
                continue

    async def verifier(self, store: Storage) -> None:
        for _ in range(5):
            await asyncio.sleep(0.002)
            await store.verify()

    async def watch(self, store: Storage) -> None:
        """Watch every write, and begin again at the newest revision after an error."""
        while True:
            try:
                after = await store.revision()
                async for batch in store.watch("/", after=after):
                    for change in batch:
                        if change.revision < after:
                            self.record.finding(f"revision {change.revision} came after {after}")
                        after = change.revision
                        if not change.is_progress:
                            self.delivered[change.revision] = (
                                change.key,
                                None if change.entry is None else tag_of(change.entry.value),
                            )
            except CompactedError:
                pass
            except StorageError:
                await asyncio.sleep(0.001)

    async def recovered(self, file: SqliteStorage, store: Storage) -> None:
        """Check that the store goes on without help."""
        watch = asyncio.create_task(self.watch(store))
        await asyncio.sleep(0)
        if not await self.write(store, f"/{self.name}/later", 0):
            self.record.finding(f"a write failed after the fault was over: {file.problem}")
        for key in [*self.entries, f"/{self.name}/later"]:
            if not await self.read(store, key):
                self.record.finding(f"{key} could not be read after the fault was over")
        newest = max(self.acknowledged, default=0)
        while newest and newest not in self.delivered:
            await asyncio.sleep(0.001)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        for revision, written in self.acknowledged.items():
            if self.delivered.get(revision, written) != written:
                self.record.finding(
                    f"a watch delivered {self.delivered[revision]} at {revision}, written was {written}"
                )
        for _ in range(VERIFICATIONS):
            await store.verify()
            if not file.alarm:
                break
            await asyncio.sleep(0.002)
        else:
            self.record.finding(f"there is an alarm after the fault was over: {file.alarm}")


def fault_is_over() -> None:
    """Tell the judge that the work under the fault has ended, and wait until the fault is over."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()


def main() -> None:
    """Run with the arguments of the command line."""
    path, rules, record, seed, name = sys.argv[1:]
    use_small_limits()
    program = Program(plan_of(int(seed)), Path(path), Faults(Path(rules)), Record(Path(record)), name)
    asyncio.run(program.run())
    os._exit(0)  # an interpreter that ends in order takes as long as the rest


if __name__ == "__main__":
    main()
