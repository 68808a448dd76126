"""Any sequence of calls gets the same answers from SQLite as from the reference driver."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mooring.clock import SystemClock
from mooring.errors import StorageError
from mooring.storage.contract import Storage, StoredChange
from mooring.storage.memory import MemoryStorage
from mooring.storage.sqlite.driver import SqliteStorage

KEYS = st.sampled_from(["/a", "/a/", "/a/b", "/a\0", "/b", "/é", "/\U0010ffff"]) | st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1, max_size=3
)
PREFIXES = st.sampled_from(["", "/", "/a", "/a/", "/\U0010ffff", "x"])
VALUES = st.binary(max_size=20)
OFFSETS = st.integers(-6, 2)
PATIENCE = 20.0


async def told(store: Storage, prefix: str, after: int, count: int) -> list[StoredChange]:
    """What a watch has to say, at least `count` changes: waiting for those lasts as long as the machine needs.

    A look at the revision lets the store hear of the other's writes first.
    """
    found: list[StoredChange] = []
    await store.revision()
    await asyncio.sleep(0)
    watch: Any = store.watch(prefix, after=after)
    try:
        while True:
            batch = await asyncio.wait_for(anext(watch), timeout=PATIENCE if len(found) < count else 0.005)
            found += [change for change in batch if not change.is_progress]
    except TimeoutError:
        return found
    finally:
        await watch.aclose()


class Agreement(RuleBasedStateMachine):
    """Two stores of SQLite on one file (calls alternate between them) and the reference."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        path = Path(self.directory.name) / "mooring.db"
        self.reference = MemoryStorage()
        self.files = [SqliteStorage(path, SystemClock()) for _ in range(2)]
        self.runner = asyncio.Runner()
        self.revision = 1
        self.stores: list[Storage] = [self.reference, *self.files]
        for store in self.stores:
            self.runner.run(store.open())

    def teardown(self) -> None:
        for store in self.stores:
            self.runner.run(store.close())
        self.runner.close()
        self.directory.cleanup()

    async def outcome(self, store: Storage, call: Callable[[Storage], Awaitable[Any]]) -> tuple[Any, ...]:
        try:
            return ("returned", await call(store))
        except StorageError as error:
            return (type(error), str(error), vars(error))

    def both(self, call: Callable[[Storage], Awaitable[Any]]) -> None:
        self.files.reverse()
        wanted = self.runner.run(self.outcome(self.reference, call))
        assert self.runner.run(self.outcome(self.files[0], call)) == wanted

    @rule(key=KEYS, value=VALUES)
    def create(self, key: str, value: bytes) -> None:
        self.both(lambda store: store.create(key, value))

    @rule(key=KEYS, value=VALUES, stale=st.integers(0, 1))
    def update(self, key: str, value: bytes, stale: int) -> None:
        async def call(store: Storage) -> object:
            current = await store.get(key)
            return await store.update(key, value, expected=current.revision - stale if current else 1)

        self.both(call)

    @rule(key=KEYS, stale=st.integers(0, 1))
    def delete(self, key: str, stale: int) -> None:
        async def call(store: Storage) -> object:
            current = await store.get(key)
            return await store.delete(key, expected=current.revision - stale if current else 1)

        self.both(call)

    @rule(key=KEYS, offset=OFFSETS)
    def get(self, key: str, offset: int) -> None:
        self.both(lambda store: store.get(key, revision=max(self.revision + offset, 0)))

    @rule(
        prefix=PREFIXES,
        after=st.just("") | KEYS,
        limit=st.integers(0, 3),
        offset=OFFSETS,
        now=st.booleans(),
        counted=st.booleans(),
    )
    def range(self, prefix: str, after: str, limit: int, offset: int, now: bool, counted: bool) -> None:
        revision = 0 if now else max(self.revision + offset, 1)
        self.both(lambda store: store.range(prefix, after=after, limit=limit, revision=revision, counted=counted))

    @rule(offset=OFFSETS)
    def compact(self, offset: int) -> None:
        self.both(lambda store: store.compact(max(self.revision + offset, 1)))

    @rule(offset=st.integers(-6, 1) | st.just(1_000_000))
    def advance(self, offset: int) -> None:
        self.both(lambda store: store.advance(max(self.revision + offset, 1)))

    @rule(prefix=PREFIXES, offset=OFFSETS)
    def watch(self, prefix: str, offset: int) -> None:
        after = max(self.revision + offset, 0)
        reference = self.runner.run(self.outcome(self.reference, lambda store: told(store, prefix, after, 0)))
        count = len(reference[1]) if reference[0] == "returned" else 1
        self.files.reverse()
        assert (
            self.runner.run(self.outcome(self.files[0], lambda store: told(store, prefix, after, count))) == reference
        )

    @invariant()
    def same_revision_and_state(self) -> None:
        async def whole(store: Storage) -> tuple[object, ...]:
            return (await store.revision(), await store.compacted(), await store.range(""))

        wanted = self.runner.run(whole(self.reference))
        for store in self.files:
            assert self.runner.run(whole(store)) == wanted
        self.revision = self.runner.run(self.reference.revision())


TestAgreement = Agreement.TestCase
HISTORIES = settings().max_examples * 2 // 5
"""Histories of up to 40 steps, after each of which the stores are compared whole: 20, and 800 with HYPOTHESIS_PROFILE=thorough."""
TestAgreement.settings = settings(max_examples=HISTORIES, stateful_step_count=40, deadline=None)
