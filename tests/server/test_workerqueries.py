"""Questions between workers, published documents, and metrics added up: several workers in one process over one memory."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from mooring.server import hostmetrics
from mooring.server import workerqueries as module
from mooring.server.hostmetrics import HostMetrics
from mooring.server.metrics import Metrics
from mooring.server.sharedmemory import ALONE, MAX_DOCUMENT, Publication, SharedMemory, WorkerMemory, nameless_file
from mooring.server.workerqueries import WorkerQueries
from tests.support.serverroom import open_server

# -- questions -----------------------------------------------------------------------------------------------------


def echo(name: str) -> dict[str, Callable[[str], bytes]]:
    return {"name": lambda text: f"{name} {text}".encode()}


def with_siblings(body: Callable[[list[WorkerQueries], SharedMemory], Any], workers: int = 3) -> None:
    memory = SharedMemory(workers)

    async def run() -> None:
        found = [WorkerQueries(echo(f"worker {worker}"), memory.share_of(worker)) for worker in range(workers)]
        for one in found:
            one.start()
        await body(found, memory)
        for one in found:
            await one.stop()

    asyncio.run(run())


def test_every_other_worker_answers() -> None:
    async def body(workers: list[WorkerQueries], memory: SharedMemory) -> None:
        assert await workers[1].ask("name", "now") == [b"worker 0 now", b"worker 2 now"]
        await workers[0].stop()
        assert await workers[1].ask("name", "then") == [b"worker 2 then"]

    with_siblings(body)


def test_an_answer_may_be_long_and_many_may_ask_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(workers: list[WorkerQueries], memory: SharedMemory) -> None:
        workers[0]._answers = {"long": lambda text: text.encode() * 1_000_000}
        found = await asyncio.gather(*(workers[1].ask("long", letter) for letter in "abcdefghijklmno"))
        assert [answer[0][:1] for answer in found] == [letter.encode() for letter in "abcdefghijklmno"]
        assert {len(answer[0]) for answer in found} == {1_000_000}
        monkeypatch.setattr(module, "MAX_ANSWER", 1000)
        assert await workers[1].ask("long", "a") == []

    with_siblings(body, workers=2)


def test_a_process_that_is_alone_asks_nobody() -> None:
    async def body() -> None:
        alone = WorkerQueries(echo("alone"))
        alone.start()
        assert await alone.ask("name") == []
        await alone.stop()

    asyncio.run(body())


def test_a_worker_that_does_not_answer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.05)

    async def body(workers: list[WorkerQueries], memory: SharedMemory) -> None:
        asyncio.get_running_loop().remove_reader(memory.questions(0).fileno())
        for _ in range(20):  # more than the queue of its socket takes
            assert await workers[1].ask("name", "x") == [b"worker 2 x"]
        memory.clear(0)
        assert workers[1].present == [2]

    with_siblings(body)


def test_a_question_that_is_not_understood_or_too_long_has_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def body(workers: list[WorkerQueries], memory: SharedMemory) -> None:
        assert await workers[1].ask("unknown") == []
        assert "was not answered" in caplog.text
        assert await workers[1].ask("name", "x" * module.MAX_QUESTION) == []
        memory.line_to(0).send(b"no stream to answer on")
        assert await workers[1].ask("name", "x") == [b"worker 0 x"]

    with_siblings(body, workers=2)


# -- published documents -------------------------------------------------------------------------------------------


def test_the_newest_document_is_read_and_a_long_one_is_not_taken() -> None:
    place = nameless_file("published")
    publication = Publication(place)
    assert publication.read() is None
    for document in (b"first, and longer", b"second", b"third"):
        assert publication.write(document)
        assert Publication(place).read() == document
    assert not publication.write(bytes(MAX_DOCUMENT + 1))
    assert publication.read() == b"third"
    os.close(place)


def test_a_document_that_was_half_written_leaves_the_one_before() -> None:
    place = nameless_file("published")
    publication = Publication(place)
    for document in (b"first", b"second"):
        publication.write(document)
    written: list[tuple[bytes, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", lambda descriptor, data, offset: written.append((data, offset)))
        publication.write(b"third")
    data, offset = written[0]
    for end in range(1, len(data)):
        os.pwrite(place, data[:end], offset)
        assert publication.read() == b"second"
    os.pwrite(place, data, offset)
    assert publication.read() == b"third"
    os.close(place)


# -- metrics -------------------------------------------------------------------------------------------------------


class Worker:
    def __init__(self, share: WorkerMemory) -> None:
        self.metrics = Metrics()
        self.open, self.late, self.refused = 0.0, 0.0, 0.0
        self.metrics.gauge("open", "Added up.", lambda: self.open)
        self.metrics.gauge("late", "The greatest.", lambda: self.late, max)
        self.metrics.counter("refused_total", "Grows.", lambda: self.refused)
        self.host = HostMetrics(self.metrics, share)
        self.siblings = WorkerQueries({hostmetrics.QUESTION: self.host.answer}, share)
        self.siblings.start()

    async def scrape(self) -> dict[str, float]:
        lines = (await self.host.text(self.siblings)).decode().splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in samples}


OK = 'apiserver_request_total{code="200",group="",resource="pods",subresource="",verb="get"}'
DURATION = "apiserver_request_duration_seconds"


def test_counters_histograms_and_gauges_of_all_workers_are_added_up() -> None:
    async def body() -> None:
        memory = SharedMemory(2)
        first, second = (Worker(memory.share_of(worker)) for worker in range(2))
        for number, worker in enumerate((first, second), 1):
            for _ in range(number):
                worker.metrics.request("get", "", "pods", "", "200").inc()
                worker.metrics.duration("get", "", "pods").observe(0.002 * number)
            worker.open, worker.late, worker.refused = number, number / 10, number
        for worker in (first, second, first):
            found = await worker.scrape()
            assert found[OK] == 3
            assert found[DURATION + '_count{group="",resource="pods",verb="get"}'] == 3
            assert found[DURATION + '_bucket{group="",le="0.0025",resource="pods",verb="get"}'] == 1
            assert found[DURATION + '_bucket{group="",le="+Inf",resource="pods",verb="get"}'] == 3
            assert (found["open"], found["late"], found["refused_total"]) == (3, 0.2, 3)
        for worker in (first, second):
            await worker.siblings.stop()

    asyncio.run(body())


@pytest.mark.parametrize("workers", [0, 2], ids=["one process", "two workers"])
def test_metrics_are_added_up_and_written_in_a_thread(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    write = generate_latest

    def noted(registry: CollectorRegistry) -> bytes:
        threads.append(threading.current_thread())
        return write(registry)

    monkeypatch.setattr(hostmetrics, "generate_latest", noted)

    async def body() -> None:
        worker = Worker(SharedMemory(workers).share_of(0) if workers else ALONE)
        assert (await worker.scrape())["open"] == 0
        await worker.siblings.stop()

    asyncio.run(body())
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


def test_a_counter_never_goes_back_when_a_worker_is_killed_or_ends() -> None:
    async def body() -> None:
        memory = SharedMemory(2)
        first, second = (Worker(memory.share_of(worker)) for worker in range(2))
        second.metrics.request("get", "", "pods", "", "200").inc(5)
        second.open, second.refused = 7, 4
        assert (await first.scrape())[OK] == 5
        asyncio.get_running_loop().remove_reader(memory.questions(1).fileno())
        memory.clear(1)  # killed
        found = await first.scrape()
        assert (found[OK], found["refused_total"], found["open"]) == (5, 4, 0)
        replacement = Worker(memory.share_of(1))
        replacement.host.publish()
        replacement.metrics.request("get", "", "pods", "", "200").inc()
        for worker in (first, replacement):
            found = await worker.scrape()
            assert (found[OK], found["refused_total"], found["open"]) == (6, 4, 0)
        replacement.metrics.request("get", "", "pods", "", "200").inc()
        await replacement.siblings.stop()
        replacement.host.publish()  # as a worker does that ends
        assert (await first.scrape())[OK] == 7
        await first.siblings.stop()

    asyncio.run(body())


def test_a_scrape_does_not_hang_on_a_worker_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.05)

    async def body() -> None:
        memory = SharedMemory(2)
        first, second = (Worker(memory.share_of(worker)) for worker in range(2))
        second.open = 3
        second.host.publish()
        second.open = 4
        asyncio.get_running_loop().remove_reader(memory.questions(1).fileno())
        assert (await first.scrape())["open"] == 3, "what it published last"
        await first.siblings.stop()

    asyncio.run(body())


def test_metrics_of_a_process_that_is_alone_are_its_own() -> None:
    async def body() -> None:
        worker = Worker(WorkerMemory())
        worker.open = 2
        worker.host.publish()
        assert (await worker.scrape())["open"] == 2

    asyncio.run(body())


# -- refusals ------------------------------------------------------------------------------------------------------


def test_a_refusal_of_another_worker_is_found_by_its_audit_id() -> None:
    async def body() -> None:
        memory = SharedMemory(2)
        async with open_server(share=memory.share_of(0)) as here, open_server(share=memory.share_of(1)) as other:
            other.assembly.http.worker_queries.start()
            refused = await other.get("/api/v1/namespaces", token="x")
            audit_id = refused.headers["audit-id"]
            found = await here.get(f"/debug/authentication/refusals/{audit_id}")
            assert (found.status, found.obj["auditID"]) == (200, audit_id)
            await here.get("/api/v1/nodes", token="x")
            listed = (await here.get("/debug/authentication/refusals")).obj["items"]
            assert {item["path"] for item in listed} == {"/api/v1/namespaces", "/api/v1/nodes"}
            assert len((await here.get("/debug/authentication/refusals?limit=1")).obj["items"]) == 1
            assert (await here.get("/debug/authentication/refusals/unknown")).status == 404
            await other.assembly.http.worker_queries.stop()

    asyncio.run(body())
