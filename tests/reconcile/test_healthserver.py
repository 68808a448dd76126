"""Health and metrics over plain HTTP: what is served, and what a client may hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from mooring.controlplane import controllersprocess
from mooring.controlplane.controllersprocess import HealthServer

FAILURES = {"one": "", "two": ""}


async def ask(port: int, text: bytes) -> bytes:
    """Send bytes and return everything that comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def serving(scenario: Callable[[int], Awaitable[None]], **failures: str) -> None:
    checks = {name: lambda failure=failure: failure for name, failure in (FAILURES | failures).items()}

    async def run() -> None:
        server = HealthServer({"one": checks["one"]}, {"two": checks["two"]}, lambda: b"metric 1\n")
        port = await server.start("127.0.0.1", 0)
        try:
            await scenario(port)
        finally:
            await server.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        (b"GET /healthz", b"200 OK", b"[+]one ok\n[+]two ok\n"),
        (b"GET /readyz?verbose", b"200 OK", b"[+]one ok\n[+]two ok\n"),
        (b"GET /livez", b"200 OK", b"[+]one ok\n"),
        (b"HEAD /livez", b"200 OK", b""),
        (b"GET /metrics", b"200 OK", b"metric 1\n"),
        (b"GET /", b"404 Not Found", b"not found\n"),
        (b"GET ", b"404 Not Found", b"not found\n"),
        (b"POST /healthz", b"405 Method Not Allowed", b"only GET\n"),
        (b"\xff\xfe", b"405 Method Not Allowed", b"only GET\n"),
    ],
)
def test_requests(request_line: bytes, status: bytes, body: bytes) -> None:
    async def scenario(port: int) -> None:
        answer = await ask(port, request_line + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        head, _, rest = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 " + status + b"\r\n")
        assert rest == body

    serving(scenario)


def test_a_failed_check_is_500_with_its_reason() -> None:
    async def scenario(port: int) -> None:
        answer = await ask(port, b"GET /readyz HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert answer.endswith(b"[+]one ok\n[-]two failed: no Lease\n")
        assert (await ask(port, b"GET /livez HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 ")

    serving(scenario, two="no Lease")


def test_a_process_that_has_to_be_started_again_is_not_alive() -> None:
    async def scenario(port: int) -> None:
        answer = await ask(port, b"GET /livez HTTP/1.1\r\n\r\n")
        assert answer.endswith(b"[-]one failed: it has ended\n")

    serving(scenario, one="it has ended")


def test_a_long_request_and_an_unfinished_one_get_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controllersprocess, "SECONDS", 0.05)

    async def scenario(port: int) -> None:
        assert await ask(port, b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * 4000) == b""
        assert await ask(port, b"GET /healthz") == b""

    serving(scenario)


def test_connections_above_the_limit_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controllersprocess, "MAX_CONNECTIONS", 1)

    async def scenario(port: int) -> None:
        _, held = await asyncio.open_connection("127.0.0.1", port)
        assert await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n") == b""
        held.close()

    serving(scenario)
