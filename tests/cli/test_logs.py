"""No library logs a header or a body, however much `-v` asks for (law 9): proved over every logger that exists after requests."""

from __future__ import annotations

import asyncio
import io
import logging
import ssl
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from mooring.cli import serverlogs
from mooring.client.http import tls
from mooring.client.http.connection import ConnectionPool
from mooring.server.resources.watches import accept_headers, is_websocket
from mooring.server.transport.http import Request, Response
from mooring.server.transport.responsewriter import ResponseWriter, WebSocketWriter
from mooring.trust.httpexchange import HttpRequest
from tests.support.http2peer import peer
from tests.support.testca import ThrowawayCA
from tests.support.tlspeer import PATIENCE, reply, request, serving

MOST_VERBOSE = 2
ASKED, ANSWERED, SENT = "minted-in-a-request-header", "minted-in-a-reply-header", "minted-in-a-body"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Standard error of a program that was started with `-vv`; loggers are as before afterwards."""
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    root, mooring = logging.getLogger(), logging.getLogger("mooring")
    before = (root.handlers[:], root.level, mooring.level)
    serverlogs.configure(MOST_VERBOSE)
    yield stderr
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    mooring.setLevel(before[2])


async def handler(asked: Request) -> Response:
    body = await asked.body()
    if is_websocket(asked):

        async def stream(frames: ResponseWriter) -> None:
            frames.write(SENT.encode())

        return Response(101, headers=accept_headers(asked), stream=stream, upgrade=WebSocketWriter)
    return Response(200, body + SENT.encode(), ((b"x-secret", ANSWERED.encode()),))


def drive(tmp_path: Path) -> None:
    """Make one request of each kind that this program serves or sends."""
    authorization = f"Authorization: Bearer {ASKED}"
    ca = ThrowawayCA()
    with serving(ca, handler) as served:
        with served.client(tmp_path) as plain:
            plain.sendall(request("/", "POST", (authorization,), SENT.encode()))
            assert reply(plain)[0] == 200
        with peer(served, tmp_path) as client:
            stream = client.ask("/", "POST", [("authorization", f"Bearer {ASKED}")], body=SENT.encode())
            assert client.reply(stream).status == 200
        with served.client(tmp_path) as plain:
            handshake = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
            plain.sendall(request("/", headers=(authorization, "Sec-WebSocket-Version: 13", *handshake)))
            assert plain.recv(4096).startswith(b"HTTP/1.1 101 ")
        asyncio.run(ask(f"https://127.0.0.1:{served.port}/", tls.trusting(ca.certificate_pem)))


async def ask(url: str, context: ssl.SSLContext) -> None:
    """Make one request as the commands do."""
    connection = ConnectionPool(context)
    headers = (("Authorization", f"Bearer {ASKED}"), ("Content-Type", "application/json"))
    async with connection.stream(HttpRequest("", "POST", url, headers, SENT.encode(), timeout=PATIENCE)) as answer:
        assert SENT.encode() in await answer.read(1 << 20)
    await connection.close()


def test_nothing_of_a_header_or_body_is_written(written: io.StringIO, tmp_path: Path) -> None:
    drive(tmp_path)
    text = written.getvalue()
    assert "HTTP Request: POST https://127.0.0.1:" in text, "-vv shows the requests that this program makes"
    assert [secret for secret in (ASKED, ANSWERED, SENT) if secret in text] == []


def test_without_the_filter_libraries_would_write_headers(
    written: io.StringIO, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The story above makes libraries log headers, so that the search is one that can fail."""
    with caplog.at_level(logging.DEBUG):
        drive(tmp_path)
    assert ASKED in caplog.text
    assert ASKED not in written.getvalue()


def shipped() -> set[str]:
    """Top-level modules of Python and of what is installed with Mooring. Other tests of this process import more."""
    lock = (Path(__file__).parents[2] / "requirements/run.lock").read_text()
    locked = {line.partition("==")[0].partition("[")[0] for line in lock.splitlines() if "==" in line}
    found = {module for module, names in packages_distributions().items() if locked & {name.lower() for name in names}}
    return found | sys.stdlib_module_names


def test_no_logger_of_a_library_writes_below_warning(written: io.StringIO, tmp_path: Path) -> None:
    """Every logger that exists is asked, at the lowest level that it could be set to."""
    drive(tmp_path)
    libraries = shipped()
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in libraries]
    assert {"hpack.hpack", "httpcore2.http11", "httpx2", "asyncio"} <= {*names}
    for name in names:
        logger = logging.getLogger(name)
        assert not [one for one in logger.handlers if not isinstance(one, logging.NullHandler)], f"{name} has an outlet"
        level = logger.level
        try:
            logger.setLevel(1)
            for shown in range(1, serverlogs.LIBRARIES.get(name, logging.WARNING)):
                logger.log(shown, ASKED)
        finally:
            logger.setLevel(level)
    assert ASKED not in written.getvalue()
    logging.getLogger("hpack").warning("a warning is written")
    assert "a warning is written" in written.getvalue()
