"""Exchanges with an OpenID provider over real TLS, and the loopback redirect listener."""

from __future__ import annotations

import asyncio
import socket
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from mooring.client.http.requests import drive_notifying, send_over
from mooring.client.login.loginrequest import MAX_LINE, MAX_PASSED_OVER, listening, provider_connection
from mooring.clock import SystemClock
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.httpexchange import HttpRequest, Reply, Wait
from mooring.trust.oidc.client import Client, OAuthError, Tokens, discover
from mooring.trust.oidc.grants import (
    DevicePrompt,
    device_grant,
    new_authorization_request,
    read_redirect,
    refresh_grant,
)
from tests.support.deviceprovider import DeviceProvider, serving
from tests.support.manualclock import ManualClock
from tests.support.ports import free_port
from tests.support.testca import ThrowawayCA

N = TypeVar("N")
R = TypeVar("R")
CA = ThrowawayCA("provider", datetime.now(UTC))


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[DeviceProvider]:
    with serving(CA, tmp_path) as running:
        yield running


async def driven(exchange: Generator[HttpRequest | Wait | N, Reply, R], issuer: str, ca_pem: bytes) -> R:
    clock = SystemClock()
    async with provider_connection(issuer, ca_pem) as connection:
        return await drive_notifying(exchange, partial(send_over, connection, clock=clock), clock.sleep)


def run(exchange: Generator[HttpRequest | Wait | N, Reply, R], issuer: str, ca_pem: bytes = CA.certificate_pem) -> R:
    return asyncio.run(driven(exchange, issuer, ca_pem))


def test_a_whole_device_grant_with_a_client_secret(provider: DeviceProvider) -> None:
    provider.secret = "s&cret é"
    client = Client(provider.issuer, "kubernetes", Secret("s&cret é"))
    offers = run(discover(client), provider.issuer)
    shown: list[DevicePrompt] = []
    clock = ManualClock()

    async def grant() -> Tokens:
        async with provider_connection(provider.issuer, CA.certificate_pem) as connection:
            send = partial(send_over, connection, clock=clock)
            task = asyncio.ensure_future(drive_notifying(device_grant(client, offers), send, clock.sleep, shown.append))
            while not task.done():
                await clock.advance(1)
                await asyncio.sleep(0.01)
            return await task

    tokens = asyncio.run(grant())
    assert shown[0].user_code == "WDJB-MJHT"
    assert tokens.refresh_token is not None
    again = run(refresh_grant(client, offers, tokens.refresh_token), provider.issuer)
    assert again.refresh_token != tokens.refresh_token


def test_a_provider_under_another_ca_is_shown_nothing(provider: DeviceProvider) -> None:
    stranger = ThrowawayCA("stranger", datetime.now(UTC)).certificate_pem
    for ca_pem in (stranger, b""):
        with pytest.raises(OAuthError, match="does not verify"):
            run(discover(Client(provider.issuer, "x")), provider.issuer, ca_pem)
    assert provider.requests == []


def test_nobody_there_is_told() -> None:
    issuer = f"https://localhost:{free_port()}"
    with pytest.raises(OAuthError, match="connection refused"):
        run(discover(Client(issuer, "x")), issuer)


# ── the listener ─────────────────────────────────────────────────────────────────────────────────────────────────


def visited(url: str) -> tuple[int, str]:
    """Return the status and the page that a browser receives."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def read(target: str) -> Secret | None:
    if target == "/refused":
        raise OAuthError("login failed: access_denied")
    return Secret("code") if target == "/callback?code=x" else None


def test_what_is_no_answer_ends_nothing_and_the_answer_does() -> None:
    async def test() -> None:
        async with listening() as loopback:
            loopback.read = read
            base = f"http://127.0.0.1:{loopback.port}"
            assert (await asyncio.to_thread(visited, f"{base}/favicon.ico"))[0] == 404
            status, page = await asyncio.to_thread(visited, f"{base}/callback?code=x")
            assert status == 200
            assert "<p>Return to the terminal: it says whether you are logged in. You can close" in page
            assert "code=x" not in page
            assert (await asyncio.to_thread(visited, f"{base}/callback?code=x"))[0] == 200
            assert await loopback.answer(5) == Secret("code")

    asyncio.run(test())


def test_a_redirect_without_the_state_is_a_notice_and_ends_nothing() -> None:
    async def test() -> None:
        request = new_authorization_request("http://127.0.0.1:8000/callback", bytes(64))
        async with listening() as loopback:
            notices: list[str] = []
            loopback.read, loopback.notify = partial(read_redirect, request), notices.append
            base = f"http://127.0.0.1:{loopback.port}"
            for target in (
                "/callback?error=access_denied",
                f"/callback?code={'x' * (40 << 10)}",
                "/other?" + "x" * (40 << 10),
            ):
                status, page = await asyncio.to_thread(visited, base + target)
                assert (status, "still waiting" in page) == ((404, False) if "other" in target else (400, True))
            for _ in range(5):
                await asyncio.to_thread(visited, f"{base}/callback?error=x")
            assert notices == [
                "the browser came back with the error access_denied and no state, so it may be of another page",
                "the browser came back with more than 16 KiB, which is not read",
                "the browser came back with an error and no state, so it may be of another page",
            ]
            await asyncio.to_thread(visited, f"{base}/callback?code=abc&state={request.state}")
            assert await loopback.answer(5) == Secret("abc")

    asyncio.run(test())


def test_what_has_no_end_is_passed_over_to_a_limit() -> None:
    async def test() -> None:
        async with listening() as loopback:
            reader, writer = await asyncio.open_connection("127.0.0.1", loopback.port)
            writer.write(b"GET /" + b"x" * (MAX_PASSED_OVER + MAX_LINE))
            assert b"404 Not Found" in await reader.read()
            writer.close()

    asyncio.run(test())


def test_a_refusal_ends_the_waiting() -> None:
    async def test() -> None:
        async with listening() as loopback:
            loopback.read = read
            url = f"http://127.0.0.1:{loopback.port}/refused"
            for _ in range(2):
                assert "Login failed." in (await asyncio.to_thread(visited, url))[1]
            with pytest.raises(OAuthError, match="access_denied"):
                await loopback.answer(5)

    asyncio.run(test())


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"POST /callback?code=x HTTP/1.1\r\n\r\n", id="another method"),
        pytest.param(b"GET\r\n", id="half a line"),
        pytest.param(b"\xff\xfe\r\n", id="no ASCII"),
        pytest.param(b"GET /" + b"x" * (17 << 10) + b"\r\n", id="an endless line"),
        pytest.param(b"GET /callback", id="no end of the line"),
    ],
)
def test_what_no_browser_sends_ends_nothing(sent: bytes) -> None:
    async def test() -> None:
        async with listening() as loopback:
            loopback.read = read
            reader, writer = await asyncio.open_connection("127.0.0.1", loopback.port)
            writer.write(sent)
            writer.write_eof()
            assert b"200 OK" not in await reader.read()
            writer.close()
            with pytest.raises(TimeoutError):
                await loopback.answer(0)

    asyncio.run(test())


@pytest.mark.parametrize("sent", [b"", b"GET /callback?co"])
def test_connections_that_are_open_at_the_end_are_closed_without_a_word(sent: bytes) -> None:
    reported: list[object] = []

    async def test() -> list[socket.socket]:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
        async with listening() as loopback:
            loopback.read = read
            idle = [socket.create_connection(("127.0.0.1", loopback.port), 5) for _ in range(3)]
            for connection in idle:
                connection.sendall(sent)
            await asyncio.to_thread(visited, f"http://127.0.0.1:{loopback.port}/callback?code=x")
            assert await loopback.answer(5) == Secret("code")
        return idle

    for connection in asyncio.run(test()):
        with connection:
            assert connection.recv(1) == b""
    assert reported == []


def test_before_it_is_told_what_to_read_it_reads_nothing() -> None:
    async def test() -> None:
        async with listening() as loopback:
            url = f"http://127.0.0.1:{loopback.port}/callback?code=x"
            assert (await asyncio.to_thread(visited, url))[0] == 404

    asyncio.run(test())


def test_a_port_that_is_taken_is_told() -> None:
    async def test() -> None:
        async with listening() as loopback:
            with pytest.raises(ConfigError, match=f"port {loopback.port} of 127.0.0.1 cannot be listened on"):
                async with listening(loopback.port):
                    pass

    asyncio.run(test())
