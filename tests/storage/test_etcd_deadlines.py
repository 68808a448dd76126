"""The time of an operation on an etcd that answers nothing: all its attempts together, on a clock that jumps over waits."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from mooring.clock import SystemClock
from mooring.errors import StorageError, UnknownOutcomeError
from mooring.settings.storage import StorageSettings
from mooring.storage.contract import Entry
from mooring.storage.etcd import messages
from mooring.storage.etcd.connection import OUTCOME_SECONDS, READ_SECONDS, EtcdConnection, EtcdRefusedError
from mooring.storage.etcd.driver import EtcdStorage
from mooring.storage.etcd.watching import Leases

KEY = "/registry/a"
Operation = Callable[[EtcdStorage], Coroutine[Any, Any, Any]]


class _Jumping(selectors.DefaultSelector):
    """A selector that does not wait: its time goes on instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events and timeout:
            self.now += timeout
        return events


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.selector = _Jumping()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.now


def failure(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


class Silent:
    """The channel to a member that takes every call and answers none, after those of `answers`."""

    url = "http://192.0.2.1:2379"

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.sent: list[str] = []
        self.calls = {method: self._call(method) for method in messages.METHODS}

    def _call(self, method: str) -> Callable[..., asyncio.Task[Any]]:
        async def answer(timeout: float) -> Any:
            if self.answers:
                answered = self.answers.pop(0)
                if isinstance(answered, grpc.aio.AioRpcError):
                    raise answered
                return answered
            await asyncio.sleep(timeout)
            raise failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

        def call(request: Any, *, timeout: float, metadata: Any) -> asyncio.Task[Any]:
            self.sent.append(method)
            return asyncio.ensure_future(answer(timeout))

        return call


def silent_store(member: Silent, monkeypatch: pytest.MonkeyPatch) -> EtcdStorage:
    """Return an open store, all of whose endpoints are `member`."""
    monkeypatch.setattr(EtcdConnection, "_endpoint", lambda connection, url: member)
    monkeypatch.setattr(EtcdConnection, "_close_later", lambda connection, endpoint, grace: None)
    settings = StorageSettings()
    store = EtcdStorage(["http://192.0.2.1:2379", "http://192.0.2.2:2379"], settings, SystemClock())
    store._connection = EtcdConnection(settings, ["http://192.0.2.1:2379", "http://192.0.2.2:2379"])
    store._leases = Leases(store._connection, SystemClock())
    store._newest, store._is_open = 7, True
    store._idle.set()
    return store


def run(scenario: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(scenario)


def test_a_close_ends_the_read_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        store = silent_store(Silent(), monkeypatch)
        monkeypatch.setattr(store, "_stream", SimpleNamespace(close=lambda: asyncio.sleep(0)), raising=False)
        read = asyncio.ensure_future(store.revision())
        await asyncio.sleep(0)
        read.cancel()
        await store.close()
        assert asyncio.get_running_loop().time() == 0.0

    run(scenario())


READS: dict[str, Operation] = {
    "a fresh read": lambda store: store.revision(),
    "a key": lambda store: store.get(KEY),
    "the oldest revision": lambda store: store.compacted(),
}
WRITES: dict[str, Operation] = {
    "a creation": lambda store: store.create(KEY, b"1"),
    "a creation with a lease": lambda store: store.create(KEY, b"1", ttl=3600),
    "an update": lambda store: store.update(KEY, b"1", expected=7),
    "a deletion": lambda store: store.delete(KEY, expected=7),
}


@pytest.mark.parametrize("operation", READS.values(), ids=READS)
def test_a_read_of_a_silent_etcd_fails_after_six_seconds(operation: Operation, monkeypatch: pytest.MonkeyPatch) -> None:
    member = Silent()

    async def scenario() -> None:
        store, loop = silent_store(member, monkeypatch), asyncio.get_running_loop()
        with pytest.raises(StorageError, match="does not answer") as caught:
            await operation(store)
        assert not isinstance(caught.value, UnknownOutcomeError)
        assert loop.time() <= READ_SECONDS == 6

    run(scenario())
    assert len(member.sent) > 1, "other members were tried"


def test_a_caller_that_comes_during_a_round_trip_waits_its_own_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        store, loop = silent_store(Silent(), monkeypatch), asyncio.get_running_loop()
        first = asyncio.ensure_future(store.revision())
        await asyncio.sleep(1)
        with pytest.raises(StorageError):
            await store.revision()
        assert loop.time() <= 1 + READ_SECONDS
        assert isinstance(first.exception(), StorageError)

    run(scenario())


@pytest.mark.parametrize("operation", WRITES.values(), ids=WRITES)
def test_a_write_to_a_silent_etcd_ends_after_ten_seconds(operation: Operation, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        store, loop = silent_store(Silent(), monkeypatch), asyncio.get_running_loop()
        with pytest.raises(StorageError):
            await operation(store)
        assert loop.time() <= OUTCOME_SECONDS + 0.001 == 10.001

    run(scenario())


def test_writers_that_wait_for_one_lease_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        store, loop = silent_store(Silent(), monkeypatch), asyncio.get_running_loop()
        writes = [store.create(f"{KEY}{number}", b"1", ttl=3600) for number in range(5)]
        results = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(result) for result in results] == [StorageError] * 5  # nothing was sent, so nothing is stored
        assert loop.time() <= READ_SECONDS

    run(scenario())


@pytest.mark.parametrize("operation", [WRITES["an update"], WRITES["a deletion"]], ids=["an update", "a deletion"])
def test_a_second_attempt_that_is_refused_leaves_the_outcome_of_the_first_unknown(
    operation: Operation, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Silent()
    member.answers = [
        failure(grpc.StatusCode.UNAVAILABLE, "Socket closed"),
        failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded"),
    ]

    async def scenario() -> None:
        with pytest.raises(UnknownOutcomeError):
            await operation(silent_store(member, monkeypatch))

    run(scenario())
    assert member.sent[:2] == [messages.TXN] * 2
    assert messages.TXN not in member.sent[2:]


FULL = failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded")
"""What etcd answers to the write by which it notices that its database is full, which is stored, and to those after it."""


def at_etcd(value: bytes, created: int, modified: int) -> Any:
    """Return the answer to a read of the key; revision 0: it is absent."""
    found = messages.KeyValue(key=KEY.encode(), value=value, create_revision=created, mod_revision=modified)
    header = messages.CLASSES["ResponseHeader"](revision=9)
    return messages.CLASSES["RangeResponse"](header=header, kvs=[found] if modified else [])


@pytest.mark.parametrize(
    ("write", "found", "expected"),
    [
        pytest.param("a creation", (b"", 0, 0), EtcdRefusedError, id="a creation that is not stored"),
        pytest.param("an update", (b"0", 5, 7), EtcdRefusedError, id="an update that is not stored"),
        pytest.param("a deletion", (b"0", 5, 7), EtcdRefusedError, id="a deletion that is not carried out"),
        pytest.param("a creation", (b"1", 8, 8), Entry(KEY, b"1", 8, 8), id="a creation that is stored"),
        pytest.param("an update", (b"1", 5, 8), Entry(KEY, b"1", 8, 5), id="an update that is stored"),
        pytest.param("a creation", (b"2", 8, 8), UnknownOutcomeError, id="another value of a key that was absent"),
        pytest.param("a creation", (b"1", 8, 9), UnknownOutcomeError, id="a key that was written twice since"),
        pytest.param("an update", (b"2", 5, 8), UnknownOutcomeError, id="another value"),
        pytest.param("an update", (b"", 0, 0), UnknownOutcomeError, id="a key that is gone"),
        pytest.param("a deletion", (b"", 0, 0), UnknownOutcomeError, id="a key that is gone as the deletion wants"),
        pytest.param("an update", None, UnknownOutcomeError, id="no answer to the read"),
    ],
)
def test_a_write_that_finds_the_database_full_is_looked_up(
    write: str,
    found: tuple[bytes, int, int] | None,
    expected: Entry | type[StorageError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member = Silent()
    member.answers = [FULL, *([at_etcd(*found)] if found is not None else [])]

    async def scenario() -> None:
        store = silent_store(member, monkeypatch)
        if isinstance(expected, Entry):
            assert await WRITES[write](store) == expected
            return
        with pytest.raises(StorageError, match="NOSPACE") as caught:
            await WRITES[write](store)
        assert type(caught.value) is expected

    run(scenario())
    assert member.sent[:2] == [messages.TXN, messages.RANGE]
    assert messages.TXN not in member.sent[2:], "a write that may be stored is not sent again"
