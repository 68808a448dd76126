"""State shared by the workers of a host: several workers over one memory in one process, and forked ones that are killed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Callable
from typing import Any, cast

import pytest

from mooring.authn.authfailures import AuthFailureLimiter, Bucket
from mooring.errors import TooManyRequestsError
from mooring.server import flowcontrol
from mooring.server.flowcontrol import FlowControl
from mooring.server.sharedmemory import (
    MAX_SLOTS,
    TRIES,
    WAYS,
    Counted,
    HostLock,
    SharedBuckets,
    SharedMemory,
    WorkerMemory,
    first_cell,
    key_of,
    nameless_file,
)
from mooring.server.transport.listener import Listener
from mooring.server.transport.memorybudget import HeldBytes
from mooring.server.transport.tlsconnection import TlsConnection, TlsProtocol
from tests.support.manualclock import ManualClock, settle

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
"""Python 3.12 warns of forks beside threads, such as that of pytest-xdist. The children use none of their locks."""
SECRET = bytes(16)


def shares(workers: int = 2) -> tuple[SharedMemory, list[WorkerMemory]]:
    memory = SharedMemory(workers)
    return memory, [memory.share_of(worker) for worker in range(workers)]


# -- numbers of each worker ----------------------------------------------------------------------------------------


def test_a_process_that_is_alone_counts_for_itself() -> None:
    share = WorkerMemory()
    seats = share.count(Counted.SEATS)
    seats.set(3)
    assert (share.alone, share.worker, share.workers) == (True, 0, 1)
    assert (seats.total, seats.others) == (3, 0)


def test_workers_add_up_what_each_has_written() -> None:
    _, workers = shares(3)
    seats = [share.count(Counted.SEATS) for share in workers]
    for number, count in enumerate(seats, 1):
        count.set(number)
    assert [count.total for count in seats] == [6, 6, 6]
    assert [count.others for count in seats] == [5, 4, 3]


def test_counts_of_a_worker_that_ended_are_forgotten_and_no_others() -> None:
    memory, workers = shares()
    for counted in Counted:
        for share in workers:
            share.count(counted).set(7)
    for share in workers:
        sources = share.sources()
        assert sources is not None
        claimed = sources.claim("192.0.2.1")
        assert claimed is not None
        claimed.held_bytes.set(5)
    memory.clear(0)
    assert [workers[1].count(counted).total for counted in Counted] == [7] * len(Counted)
    assert claimed is not None
    assert (claimed.connections.total, claimed.held_bytes.total) == (1, 5)
    assert not memory.share_of(0).alone


@pytest.mark.parametrize("workers", [0, -1, MAX_SLOTS + 1])
def test_a_number_of_workers_out_of_range_is_refused(workers: int) -> None:
    with pytest.raises(ValueError, match="workers must be 1 to"):
        SharedMemory(workers)


# -- failed authentications ----------------------------------------------------------------------------------------


def limiters(workers: int = 2, burst: int = 3) -> list[AuthFailureLimiter]:
    return [AuthFailureLimiter(burst, 0.5, share.buckets()) for share in shares(workers)[1]]


def test_a_source_has_one_budget_of_failures_for_all_workers() -> None:
    first, second = limiters()
    assert [first.failed("a", 10.0), second.failed("a", 10.0), first.failed("a", 10.0)] == [0.0] * 3
    assert second.failed("a", 10.0) == 2.0
    assert first.exhausted("a", 10.0)
    assert not first.exhausted("b", 10.0)
    assert second.failed("b", 10.0) == 0.0
    assert not second.exhausted("a", 12.0), "waiting as long as told helps at every worker"


def small_table(cells: int = WAYS) -> tuple[SharedBuckets, list[memoryview[Any]]]:
    arrays = [memoryview(bytearray(cells * 8)).cast(cast(Any, kind)) for kind in "Qdd"]
    keys, levels, times = arrays
    return SharedBuckets(keys, levels, times, HostLock(nameless_file("locks"), 0), SECRET), arrays


def test_a_full_set_loses_the_source_that_failed_longest_ago() -> None:
    table, _ = small_table()
    guesses = AuthFailureLimiter(1, 0.001, table)
    for number in range(WAYS):
        guesses.failed(f"source {number}", float(number))
    guesses.failed("source 0", 20.0)
    guesses.failed("one more", 21.0)
    assert guesses.exhausted("source 0", 21.0)
    assert not guesses.exhausted("source 1", 21.0)
    assert all(guesses.exhausted(f"source {number}", 21.0) for number in range(2, WAYS))


@pytest.mark.parametrize(
    ("level", "at"),
    [(-5.0, 10.0), (1e300, 10.0), (float("nan"), 10.0), (0.0, 1e300), (0.0, float("nan"))],
    ids=["below empty", "above full", "not a number", "far in the future", "no time"],
)
def test_a_damaged_bucket_is_a_full_one_and_harms_no_other(level: float, at: float) -> None:
    table, (keys, levels, times) = small_table()
    guesses = AuthFailureLimiter(2, 0.001, table)
    for source in ("a", "a", "b", "b"):
        guesses.failed(source, 10.0)
    cell = keys.tolist().index(key_of("a", SECRET))
    levels[cell], times[cell] = level, at
    assert [guesses.failed("a", 11.0) for _ in range(2)] == [0.0, 0.0]
    assert guesses.failed("a", 11.0) > 0
    assert guesses.exhausted("b", 11.0)


def test_a_worker_whose_clock_was_read_a_moment_earlier_refills_nothing() -> None:
    first, second = limiters(burst=1)
    first.failed("a", 10.001)
    assert second.failed("a", 10.0) > 0


def test_keys_differ_by_name_and_by_secret_and_are_never_free() -> None:
    names = [f"192.0.2.{number}" for number in range(100)]
    keys = {key_of(name, secret) for name in names for secret in (SECRET, b"another secret of")}
    assert len(keys) == 200
    assert 0 not in keys
    assert len({first_cell(key, 16 * WAYS) for key in keys}) == 16


# -- locks ---------------------------------------------------------------------------------------------------------


def in_child(work: Callable[[int], None]) -> tuple[int, int]:
    """Fork a worker that does `work` and then hangs. Return its number once `work` has written a byte, and that byte's pipe."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work(tell)
            signal.pause()
        finally:
            os._exit(0)
    os.close(tell)
    assert os.read(ready, 1) == b"."
    return child, ready


def kill(child: int, ready: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready)


def test_a_killed_worker_leaves_neither_counts_nor_a_lock() -> None:
    memory = SharedMemory(2)
    survivor = memory.share_of(0)
    guesses = AuthFailureLimiter(2, 0.001, survivor.buckets())

    def work(tell: int) -> None:
        share = memory.share_of(1)
        share.count(Counted.SEATS).set(500)
        sources = share.sources()
        assert sources is not None
        claimed = sources.claim("192.0.2.1")
        assert claimed is not None
        claimed.held_bytes.set(1 << 20)
        AuthFailureLimiter(2, 0.001, share.buckets()).failed("192.0.2.1", 10.0)
        for number in range(2):  # every lock of the host
            fcntl.lockf(memory.locks, fcntl.LOCK_EX, 1, number)
        os.write(tell, b".")

    child = in_child(work)
    sources = survivor.sources()
    assert sources is not None
    seats = survivor.count(Counted.SEATS)
    assert seats.total == 500
    claimed = sources.claim("192.0.2.1")  # without the lock, which the other worker does not give back
    assert claimed is not None
    assert (claimed.connections.total, claimed.held_bytes.total) == (2, 1 << 20)
    kill(*child)
    lock = HostLock(memory.locks, 0)
    with lock:
        assert lock.is_held, "the kernel gave it back"
    memory.clear(1)
    assert (seats.total, claimed.connections.total, claimed.held_bytes.total) == (0, 1, 0)
    assert guesses.failed("192.0.2.1", 10.0) == 0.0
    assert guesses.failed("192.0.2.1", 10.0) > 0, "what a source has guessed is not forgotten with a worker"


def test_a_worker_that_was_stopped_with_a_lock_delays_one_change_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SharedMemory(2)
    pauses: list[float] = []

    def work(tell: int) -> None:
        fcntl.lockf(memory.locks, fcntl.LOCK_EX, 1, 0)
        os.write(tell, b".")

    child = in_child(work)
    monkeypatch.setattr("mooring.server.sharedmemory.time.sleep", pauses.append)
    table = memory.share_of(0).buckets()
    for _ in range(3):
        table.change("a", Bucket(1.0, 0.0), lambda bucket: 0.0)
    assert len(pauses) == TRIES, "only the first change waits"
    kill(*child)
    table.change("a", Bucket(1.0, 0.0), lambda bucket: 0.0)
    assert len(pauses) == TRIES
    assert table.find("a") is not None


def test_changes_of_two_workers_are_never_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooring.server.sharedmemory.TRIES", 1_000_000)  # however busy the machine is
    memory = SharedMemory(2)
    many = 2000

    def take(bucket: Bucket) -> float:
        bucket.level -= 1.0
        return 0.0

    def fail(worker: int) -> None:
        table = memory.share_of(worker).buckets()
        for _ in range(many):
            table.change("a", Bucket(1e9, 0.0), take)

    def work(tell: int) -> None:
        fail(1)
        os.write(tell, b".")

    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work(tell)
        finally:
            os._exit(0)
    fail(0)
    os.waitpid(child, 0)
    assert os.read(ready, 1) == b"."
    os.close(ready)
    os.close(tell)
    bucket = memory.share_of(0).buckets().find("a")
    assert bucket is not None
    assert bucket.level == 1e9 - 2 * many


# -- connections and held bytes ------------------------------------------------------------------------------------


def listeners(most: int, workers: int = 2) -> tuple[SharedMemory, list[Listener]]:
    memory, parts = shares(workers)
    return memory, [Listener(cast(Any, None), cast(Any, None), max_connections=most, share=share) for share in parts]


def connect(listening: Listener, source: str) -> tuple[TlsProtocol, bool]:
    protocol = TlsProtocol.__new__(TlsProtocol)
    protocol.connection, protocol.held = TlsConnection(source), 0
    return protocol, listening.admit(protocol)


def test_connections_of_all_workers_count_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooring.server.transport.listener.MAX_CONNECTIONS", 6)
    memory, (first, second) = listeners(6)
    assert all(connect(first, f"192.0.2.{number}")[1] for number in range(3))
    assert [connect(second, f"198.51.100.{number}")[1] for number in range(4)] == [True, True, True, False]
    memory.clear(0)
    assert connect(second, "203.0.113.1")[1], "connections of a worker that ended count no more"
    assert second.refused == 1


def test_connections_of_one_source_to_all_workers_are_at_most_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooring.server.transport.listener.MAX_CONNECTIONS", 8)
    _, (first, second) = listeners(8)
    ended, _ = connect(first, "192.0.2.1")
    assert [connect(worker, "192.0.2.1")[1] for worker in (second, first, second)] == [True] * 3
    assert [connect(worker, "192.0.2.1")[1] for worker in (first, second)] == [False, False]
    assert connect(first, "192.0.2.2")[1]
    first.dismiss(ended)
    assert connect(second, "192.0.2.1")[1]


def test_the_last_connection_of_a_source_frees_its_cell() -> None:
    _, parts = shares()
    tables = [share.sources() for share in parts]
    assert tables[0] is not None
    assert tables[1] is not None
    held = HeldBytes(share=parts[0])
    holder = Holder(held, "192.0.2.1")
    claimed = tables[1].claim("192.0.2.1")
    assert claimed is not None
    assert claimed.connections.total == 2
    held.dismiss(holder.source, holder)
    assert claimed.connections.total == 1
    claimed.release()
    assert claimed.connections.total == 0


def test_a_source_that_finds_its_set_full_is_counted_by_each_worker_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooring.server.sharedmemory.SOURCE_CELLS", WAYS)
    _, parts = shares()
    table = parts[0].sources()
    assert table is not None
    claimed = [table.claim(f"source {number}") for number in range(WAYS + 1)]
    assert [one is None for one in claimed] == [False] * WAYS + [True]
    assert claimed[3] is not None
    claimed[3].release()
    assert table.claim("source 17") is not None
    held = HeldBytes(share=parts[0])
    source = Holder(held, "source 99").hold(10).source
    assert (source.counts, source.everywhere, source.elsewhere_held, held.size) == (None, 1, 0, 10)


class Holder:
    """Connection for which a given number of bytes is held."""

    def __init__(self, holdings: HeldBytes, network: str) -> None:
        self.held = 0
        self.is_cut = False
        self._holdings = holdings
        self.source = holdings.admit(network, self)

    def hold(self, octets: int) -> Holder:
        self._holdings.change(self.source, self, octets)
        return self

    def recount(self) -> int:
        return self.held

    def cut(self) -> None:
        self.is_cut = True


def held_bytes(**limits: int) -> list[HeldBytes]:
    return [HeldBytes(share=share, **limits) for share in shares()[1]]


def test_bytes_held_for_a_source_by_all_workers_count_and_each_gives_up_its_part() -> None:
    first, second = held_bytes(total=10_000, by_source=100)
    before = [Holder(first, "a").hold(10) for _ in range(7)]
    neighbour = Holder(second, "b").hold(90)
    after = [Holder(second, "a").hold(10) for _ in range(6)]
    assert sum(one.is_cut for one in after) == 2, "down to its part, 50 of 110, of three quarters of the share"
    assert not any(one.is_cut for one in (*before, neighbour))
    for _ in range(4):
        Holder(second, "a").hold(10)
    first.check()
    second.check()
    left = sum(one.held for one in (*before, *after) if not one.is_cut)
    assert left <= 100


def test_one_large_reply_of_another_worker_costs_its_source_nothing() -> None:
    first, second = held_bytes(total=10_000, by_source=100)
    large = Holder(first, "a").hold(900)
    others = [Holder(second, "a").hold(10) for _ in range(7)]
    first.check()
    second.check()
    assert not any(one.is_cut for one in (large, *others))


def test_the_total_of_all_workers_is_bounded() -> None:
    first, second = held_bytes(total=1000, by_source=1000)
    for number in range(9):
        Holder(first, f"first {number}").hold(60)
    holders = [Holder(second, f"second {number}").hold(60) for number in range(9)]
    assert first.cut_off == 0
    assert second.cut_off > 0
    assert first.size + second.size <= 1000
    assert sum(one.is_cut for one in holders) == second.cut_off


# -- seats ---------------------------------------------------------------------------------------------------------


def flows(seats: int, workers: int = 2, **more: Any) -> tuple[SharedMemory, list[FlowControl]]:
    memory, parts = shares(workers)
    return memory, [FlowControl(ManualClock(), seats=seats, share=share, **more) for share in parts]


def run(body: Callable[[], Any]) -> None:
    asyncio.run(body())


def test_seats_that_one_worker_has_taken_are_missing_at_the_other() -> None:
    async def body() -> None:
        memory, (first, second) = flows(3)
        assert [first.try_enter("a"), second.try_enter("b"), first.try_enter("a")] == [True] * 3
        assert not second.try_enter("b")
        waiting = asyncio.ensure_future(second.enter("b"))
        await settle()
        assert not waiting.done()
        first.leave()
        await asyncio.wait_for(waiting, 10)
        assert not first.try_enter("a")
        memory.clear(1)
        assert first.try_enter("a"), "seats of a worker that ended are free"

    run(body)


def test_a_worker_that_waits_gets_the_seat_although_nothing_runs_there() -> None:
    async def body() -> None:
        _, (first, second) = flows(1)
        assert first.try_enter("a")
        waiting = asyncio.ensure_future(second.enter_anonymous())
        await settle()
        first.leave()
        await asyncio.sleep(2 * flowcontrol.LOOK_SECONDS)
        assert not waiting.done(), "an anonymous request leaves the last seat to the users of other workers"
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    run(body)


def test_anonymous_requests_of_all_workers_have_one_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flowcontrol, "ANONYMOUS_SEATS", 2)

    async def body() -> None:
        _, (first, second) = flows(10)
        await first.enter_anonymous()
        await second.enter_anonymous()
        waiting = asyncio.ensure_future(second.enter_anonymous())
        await settle()
        assert not waiting.done()
        first.leave_anonymous()
        await asyncio.wait_for(waiting, 10)

    run(body)


def test_queues_of_all_workers_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flowcontrol, "QUEUED_USERS", 2)
    monkeypatch.setattr(flowcontrol, "ANONYMOUS_QUEUE", 2)
    monkeypatch.setattr(flowcontrol, "QUEUE_PER_USER", 4)

    async def body() -> None:
        _, (first, second) = flows(1)
        assert first.try_enter("busy")
        waiting = [asyncio.ensure_future(one) for one in (first.enter("a"), second.enter("b"), second.enter("b"))]
        anonymous = [asyncio.ensure_future(worker.enter_anonymous()) for worker in (first, second)]
        await settle()
        for refused in (first.enter("c"), second.enter("c"), second.enter("b"), first.enter_anonymous()):
            with pytest.raises(TooManyRequestsError):
                await refused
        for task in (*waiting, *anonymous):
            task.cancel()
        await asyncio.gather(*waiting, *anonymous, return_exceptions=True)

    run(body)


def test_the_rate_of_anonymous_requests_is_one_for_all_workers() -> None:
    async def body() -> None:
        _, (first, second) = flows(100, anonymous_per_second=2.0)
        await first.enter_anonymous()
        await second.enter_anonymous()
        for flow in (first, second):
            with pytest.raises(TooManyRequestsError):
                await flow.enter_anonymous()

    run(body)
