"""Delivery of notices to a simulated receiver: repetition, refusals, limits, what is shown of the URL, and the end of a process."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from mooring.api.core.event import new_event
from mooring.apimachinery.schema import Obj
from mooring.controlplane import notifier as delivery
from mooring.controlplane.datadirectory import Reloading
from mooring.controlplane.notifier import MAX_AGE, MAX_WAITING, NoticeMetrics, Notifier, notifier_of
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.notices import NoticeSettings, signature
from tests.support.connectproxy import connect_proxy
from tests.support.manualclock import EPOCH, ManualClock
from tests.support.peer import Answer, ReceivedRequest, Reply, byte_peer, http_peer
from tests.support.testca import ThrowawayCA

SECONDS = 60.0
"""Time in which a test has to end."""
PATH = "/services/T0/s3cr3t-path?token=s3cr3t-query"
KEY = "k" * 16


def event(name: str = "e1") -> Obj:
    made = new_event(
        {"kind": "Node", "name": "n1"}, "Because", "text", EPOCH, metadata={"name": name}, is_warning=False
    )
    return {**made, "metadata": {**made["metadata"], "uid": name}}


class Delivery:
    """A notifier that runs, with its clock."""

    def __init__(self, url: str, **files: str) -> None:
        self.clock, self.reloading = ManualClock(), Reloading()
        settings = NoticeSettings.read({"notify_url": url, **files})
        made = notifier_of(settings, "https://192.0.2.1:6443", self.reloading, self.clock)
        assert made is not None
        self.notifier: Notifier = made

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for the receiver, which runs in a thread."""
        async with asyncio.timeout(SECONDS):
            while not is_so():
                await asyncio.sleep(0.005)

    async def until_paused(self) -> None:
        await self.until(lambda: self.clock.sleepers > 0)

    @property
    def report(self) -> tuple[int, int, str]:
        """What waits, what was dropped, and the problem."""
        found = self.notifier.report()
        return found["waiting"], found["dropped"], found["problem"]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.notifier.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def replies(*statuses: int) -> Answer:
    """Answer the statuses in turn, and then the last one."""
    left = list(statuses)

    def answer(asked: ReceivedRequest) -> Reply:
        return Reply(left.pop(0) if len(left) > 1 else left[0])

    return answer


def test_a_notice_arrives_signed_and_without_a_repetition(tmp_path: Path) -> None:
    ca, key = ThrowawayCA(), tmp_path / "key"
    (tmp_path / "ca.crt").write_bytes(ca.certificate_pem)
    key.write_text(KEY)

    async def run(url: str) -> Delivery:
        sending = Delivery(url, notify_key_file=str(key), notify_ca_file=str(tmp_path / "ca.crt"))
        async with sending.running():
            sending.notifier.add(event("e1"))
            sending.notifier.add(event("e2"))
            await sending.until(lambda: sending.notifier.waiting == 0)
            key.write_text(KEY + "2")
            await sending.reloading.look()
            await sending.reloading.look()
            sending.notifier.add(event("e3"))
            await sending.until(lambda: sending.notifier.waiting == 0)
        return sending

    with http_peer(pair=ca.server("127.0.0.1")) as peer:
        sending = asyncio.run(run(peer.url + PATH))
    assert [request.path for request in peer.requests] == [PATH] * 3
    assert [json.loads(request.body)["id"] for request in peer.requests] == ["e1", "e2", "e3"]
    for request, key_text in zip(peer.requests, (KEY, KEY, KEY + "2"), strict=True):
        headers = {name.lower(): value for name, value in request.headers.items()}
        signed = signature(Secret(key_text), headers["webhook-id"], int(headers["webhook-timestamp"]), request.body)
        assert (request.method, headers["content-type"]) == ("POST", "application/json")
        assert headers["webhook-signature"] == signed
    assert sending.notifier.counts == {"sent": 3, "dropped": 0, "refused": 0}


def test_another_ca_is_used_when_its_file_changes(tmp_path: Path) -> None:
    old, new, file = ThrowawayCA("old"), ThrowawayCA("new"), tmp_path / "ca.crt"
    file.write_bytes(old.certificate_pem)

    async def run(url: str) -> None:
        sending = Delivery(url, notify_ca_file=str(file))
        async with sending.running():
            sending.notifier.add(event())
            await sending.until_paused()
            assert "certificate" in sending.report[2]
            file.write_bytes(new.certificate_pem)
            await sending.reloading.look()
            await sending.reloading.look()
            await sending.clock.advance(1)
            await sending.until(lambda: sending.notifier.waiting == 0)

    with http_peer(pair=new.server("127.0.0.1")) as peer:
        asyncio.run(run(peer.url + PATH))
    assert [request.path for request in peer.requests] == [PATH]


def test_notices_share_a_connection() -> None:
    accepted: list[int] = []

    def serve(connection: socket.socket) -> None:
        accepted.append(1)
        while receive(connection):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async def run(url: str) -> None:
        sending = Delivery(url)
        async with sending.running():
            for number in range(5):
                sending.notifier.add(event(f"e{number}"))
            await sending.until(lambda: sending.notifier.counts["sent"] == 5)

    with byte_peer(serve) as peer:
        asyncio.run(run(f"http://{peer.endpoint}{PATH}"))
    assert accepted == [1]


def test_a_notice_is_sent_again_until_the_receiver_takes_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mooring.controlplane")

    async def run(url: str) -> None:
        sending = Delivery(url)
        async with sending.running():
            sending.notifier.add(event())
            for pause in (1, 2, 4):
                await sending.until_paused()
                assert sending.report == (1, 0, "it answers 500")
                await sending.clock.advance(pause - 0.5)
                assert sending.clock.sleepers == 1, "the pause doubles"
                await sending.clock.advance(0.5)
            await sending.until(lambda: sending.notifier.waiting == 0)
            assert sending.report == (0, 0, "")

    with http_peer(replies(500, 500, 500, 200)) as peer:
        asyncio.run(run(f"http://{peer.endpoint}{PATH}"))
    assert len(peer.requests) == 4
    assert {request.headers["webhook-id"] for request in peer.requests} == {"e1"}
    assert caplog.text.count("fail: it answers 500") == caplog.text.count("are sent again") == 1


def test_a_refusal_is_said_once_and_ends_the_attempts(caplog: pytest.LogCaptureFixture) -> None:
    async def run(url: str) -> None:
        sending = Delivery(url)
        async with sending.running():
            sending.notifier.add(event("e1"))
            sending.notifier.add(event("e2"))
            await sending.until(lambda: sending.notifier.waiting == 0)
        assert sending.report == (0, 2, "it answers 410")
        registry = CollectorRegistry()
        registry.register(NoticeMetrics(sending.notifier))
        text = generate_latest(registry).decode()
        assert 'mooring_notices_total{result="refused"} 2.0' in text
        assert "mooring_notices_waiting 0.0" in text

    with http_peer(replies(410)) as peer:
        asyncio.run(run(f"http://{peer.endpoint}{PATH}"))
    assert len(peer.requests) == 2
    assert caplog.text.count("it answers 410") == 1


def test_a_redirect_is_not_followed() -> None:
    async def run(url: str) -> None:
        sending = Delivery(url)
        async with sending.running():
            sending.notifier.add(event())
            await sending.until_paused()
            assert sending.report == (1, 0, "it answers 307, and redirects are not followed")

    with http_peer() as other:
        there = {"Location": f"http://{other.endpoint}/"}
        with http_peer(lambda asked: Reply(307, headers=there)) as peer:
            asyncio.run(run(f"http://{peer.endpoint}{PATH}"))
    assert other.requests == []


def receive(connection: socket.socket) -> bytes:
    """Return one request; b"" when the client has closed. A close with bytes that nobody read would be a reset."""
    received = b""
    while not received.endswith(b"}"):
        if not (data := connection.recv(4096)):
            return b""
        received += data
    return received


def hangs(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


def drips(connection: socket.socket) -> None:
    receive(connection)
    connection.sendall(b"HTTP/1.1 500 no\r\nContent-Length: 1000\r\n\r\n")
    hangs(connection)


def floods(connection: socket.socket) -> None:
    receive(connection)
    connection.sendall(b"HTTP/1.1 500 no\r\nContent-Length: 1000000000\r\n\r\n")
    while True:  # until the client closes
        connection.sendall(b"x" * 65536)


def closes(connection: socket.socket) -> None:
    receive(connection)


def babbles(connection: socket.socket) -> None:
    receive(connection)
    connection.sendall(b"hello\r\n\r\n")


@pytest.mark.parametrize(
    ("serve", "problem"),
    [
        pytest.param(hangs, "no answer within 0.3 s", id="hangs"),
        pytest.param(drips, "it answers 500", id="drips"),
        pytest.param(floods, "it answers 500", id="answers a gigabyte"),
        pytest.param(closes, "the connection was closed without a whole answer", id="closes"),
        pytest.param(babbles, "the answer is not HTTP", id="is not HTTP"),
    ],
)
def test_a_receiver_that_never_ends_its_answer_costs_one_attempt(
    serve: Callable[[socket.socket], None], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "ATTEMPT_SECONDS", 0.3)
    monkeypatch.setattr(delivery, "LAST_SECONDS", 0.1)

    async def run(url: str) -> None:
        sending = Delivery(url)
        async with sending.running():
            sending.notifier.add(event())
            await sending.until_paused()
            waiting, dropped, said = sending.report
            assert (waiting, dropped) == (1, 0)
            assert said.startswith(problem)

    with byte_peer(serve) as peer:
        asyncio.run(run(f"http://{peer.endpoint}{PATH}"))


def test_a_receiver_that_took_a_notice_and_never_ends_its_answer_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "ATTEMPT_SECONDS", 0.3)

    def serve(connection: socket.socket) -> None:
        receive(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        hangs(connection)

    async def run(url: str) -> None:
        sending = Delivery(url)
        async with sending.running():
            sending.notifier.add(event())
            await sending.until(lambda: sending.notifier.counts["sent"] == 1)

    with byte_peer(serve) as peer:
        asyncio.run(run(f"http://{peer.endpoint}{PATH}"))


def test_the_oldest_notice_is_dropped_when_too_many_wait(caplog: pytest.LogCaptureFixture) -> None:
    async def run(url: str) -> None:
        sending = Delivery(url)
        for number in range(MAX_WAITING + 2):
            sending.notifier.add(event(f"e{number}"))
        assert sending.report == (MAX_WAITING, 2, "")
        assert caplog.text.count("are dropped: more than 1000 notices wait") == 1
        async with sending.running():
            await sending.until_paused()

    with http_peer(replies(500)) as peer:
        asyncio.run(run(f"http://{peer.endpoint}{PATH}"))
    assert peer.requests[0].headers["webhook-id"] == "e2"


def test_an_overflow_while_a_notice_is_sent_loses_the_oldest_alone() -> None:
    async def run(url: str) -> Delivery:
        sending = Delivery(url)
        async with sending.running():
            sending.notifier.add(event("e0"))
            await sending.until(is_asked.is_set)
            # Of these the queue drops e0, whose attempt is under way.
            for number in range(1, MAX_WAITING + 1):
                sending.notifier.add(event(f"e{number}"))
            may_answer.set()
            await sending.until(lambda: sending.notifier.waiting == 0)
        return sending

    is_asked, may_answer = threading.Event(), threading.Event()

    def answer(asked: ReceivedRequest) -> Reply:
        is_asked.set()
        may_answer.wait(SECONDS)
        return Reply(200)

    with http_peer(answer) as peer:
        asyncio.run(run(f"http://{peer.endpoint}{PATH}"))
    assert [one.headers["webhook-id"] for one in peer.requests] == [f"e{number}" for number in range(MAX_WAITING + 1)]


def test_a_notice_is_given_up_after_a_day() -> None:
    async def run(url: str) -> None:
        sending = Delivery(url)
        async with sending.running():
            sending.notifier.add(event())
            await sending.until_paused()
            sending.clock.set(EPOCH + MAX_AGE)
            sending.notifier.add(event("e2"))
            await sending.clock.advance(2)
            await sending.until(lambda: sending.report == (0, 1, ""))

    with http_peer(replies(500, 200)) as peer:
        asyncio.run(run(f"http://{peer.endpoint}{PATH}"))
    assert [request.headers["webhook-id"] for request in peer.requests] == ["e1", "e2"]


def test_a_process_that_stops_tries_once_more(caplog: pytest.LogCaptureFixture) -> None:
    async def run(url: str) -> Delivery:
        sending = Delivery(url)
        async with sending.running():
            sending.notifier.add(event("e1"))
            sending.notifier.add(event("e2"))
            await sending.until_paused()
        return sending

    with http_peer(replies(500, 200)) as peer:
        assert asyncio.run(run(f"http://{peer.endpoint}{PATH}")).notifier.waiting == 0
    assert len(peer.requests) == 3
    with http_peer(replies(500)) as peer:
        assert asyncio.run(run(f"http://{peer.endpoint}{PATH}")).notifier.waiting == 2
    assert len(peer.requests) == 2
    assert f"notices to http://{peer.endpoint} that were not sent: 2" in caplog.text


def test_an_event_that_makes_no_notice_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        sending = Delivery("http://127.0.0.1:1")
        sending.notifier.add({"kind": "Event"})
        assert sending.report == (0, 0, "")

    asyncio.run(run())
    assert "no notice of an Event" in caplog.text


def test_an_error_that_nobody_expected_is_a_failed_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*arguments: object) -> None:
        raise ValueError(PATH)

    async def run() -> None:
        sending = Delivery("http://127.0.0.1:1")
        monkeypatch.setattr(delivery, "send_over", fail)
        async with sending.running():
            sending.notifier.add(event())
            await sending.until_paused()
            assert sending.report == (1, 0, "ValueError")

    asyncio.run(run())


def test_the_path_of_the_url_is_in_no_log_and_no_report(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """httpx2 logs the URL of each request at INFO, which `-vv` shows."""
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []

    async def run(url: str) -> None:
        sending = Delivery(url)
        async with sending.running():
            sending.notifier.add(event())
            await sending.until_paused()
            shown.extend((str(sending.notifier.report()), repr(sending.notifier), repr(sending.notifier.__dict__)))

    with http_peer(replies(500)) as peer:
        asyncio.run(run(f"http://{peer.endpoint}{PATH}"))
        assert peer.requests[0].path == PATH
    with http_peer() as plain:
        asyncio.run(run(f"https://{plain.endpoint}{PATH}"))
    monkeypatch.setenv("HTTPS_PROXY", "nonsense://x")
    asyncio.run(run(f"https://receiver.example{PATH}"))
    assert "HTTP Request: POST" in caplog.text
    assert "HTTPS_PROXY" in shown[-3]
    assert "s3cr3t" not in caplog.text + "".join(shown)


def test_a_proxy_of_the_environment_sees_the_host_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ca = ThrowawayCA()
    (tmp_path / "ca.crt").write_bytes(ca.certificate_pem)

    async def run() -> None:
        sending = Delivery(f"https://receiver.example{PATH}", notify_ca_file=str(tmp_path / "ca.crt"))
        async with sending.running():
            sending.notifier.add(event())
            await sending.until(lambda: sending.notifier.counts["sent"] == 1)

    with http_peer(pair=ca.server("receiver.example")) as peer, connect_proxy(peer.port) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        asyncio.run(run())
    assert proxy.targets == ["receiver.example:443"]
    assert "s3cr3t" not in str(proxy.heads)
    assert [request.path for request in peer.requests] == [PATH]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        pytest.param("notify_key_file", b"short", "the key has fewer than 16 bytes", id="a short key"),
        pytest.param("notify_ca_file", b"", "is empty", id="an empty CA file"),
        pytest.param("notify_ca_file", b"x", "the CA to verify the server with cannot be used", id="no CA"),
        pytest.param("notify_key_file", None, "No such file", id="a missing file"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error_of_the_start(
    name: str, content: bytes | None, reason: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "file").write_bytes(content)

    async def run() -> None:
        Delivery("https://a.example", **{name: str(tmp_path / "file")})

    with pytest.raises(ConfigError) as refused:
        asyncio.run(run())
    assert str(refused.value).startswith(f"{name.replace('_', '-')}: ")
    assert reason.lower() in str(refused.value).lower()
