"""The conversation with a provider over real TLS, and the listener that a browser comes back to."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import pytest

from mooring.client.login.loopback import listening
from mooring.client.login.oauth import drive
from mooring.clock import SystemClock
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.httpexchange import Reply
from mooring.trust.login import oauth
from mooring.trust.login.oauth import Client, OauthError
from tests.support.deviceprovider import DeviceProvider, serving
from tests.support.manualclock import ManualClock
from tests.support.ports import free_port
from tests.support.testca import ThrowawayCA

R = TypeVar("R")
CA = ThrowawayCA("provider", datetime.now(UTC))


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[DeviceProvider]:
    with serving(CA, tmp_path) as running:
        yield running


def run(generator: Generator[oauth.Step, Reply, R], issuer: str, ca_pem: bytes = CA.certificate_pem) -> R:
    return asyncio.run(drive(generator, issuer, ca_pem, SystemClock(), lambda shown: None))


def test_a_whole_device_grant_with_a_client_secret(provider: DeviceProvider) -> None:
    provider.secret = "s&cret é"
    client = Client(provider.issuer, "kubernetes", Secret("s&cret é"))
    offers = run(oauth.discover(client), provider.issuer)
    shown: list[oauth.Show] = []
    clock = ManualClock()

    async def grant() -> oauth.Tokens:
        task = asyncio.ensure_future(
            drive(oauth.device_grant(client, offers), provider.issuer, CA.certificate_pem, clock, shown.append)
        )
        while not task.done():
            await clock.advance(1)
            await asyncio.sleep(0.01)
        return await task

    tokens = asyncio.run(grant())
    assert shown[0].code == "WDJB-MJHT"
    assert tokens.refresh_token is not None
    again = run(oauth.refresh(client, offers, tokens.refresh_token), provider.issuer)
    assert again.refresh_token != tokens.refresh_token


def test_a_provider_under_another_ca_is_shown_nothing(provider: DeviceProvider) -> None:
    stranger = ThrowawayCA("stranger", datetime.now(UTC)).certificate_pem
    for ca_pem in (stranger, b""):
        with pytest.raises(OauthError, match="does not verify"):
            run(oauth.discover(Client(provider.issuer, "x")), provider.issuer, ca_pem)
    assert provider.asked == []


def test_nobody_there_is_told() -> None:
    issuer = f"https://localhost:{free_port()}"
    with pytest.raises(OauthError, match="connection refused"):
        run(oauth.discover(Client(issuer, "x")), issuer)


# ── the listener ─────────────────────────────────────────────────────────────────────────────────────────────────


def visited(url: str) -> tuple[int, str]:
    """What a browser sees."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def read(target: str) -> Secret | None:
    if target == "/refused":
        raise OauthError("nobody was logged in: access_denied")
    return Secret("code") if target == "/callback?code=x" else None


def test_what_is_no_answer_ends_nothing_and_the_answer_does() -> None:
    async def test() -> None:
        async with listening() as loopback:
            loopback.read = read
            base = f"http://127.0.0.1:{loopback.port}"
            assert (await asyncio.to_thread(visited, f"{base}/favicon.ico"))[0] == 404
            status, page = await asyncio.to_thread(visited, f"{base}/callback?code=x")
            assert (status, "You are logged in." in page, "code=x" in page) == (200, True, False)
            assert (await asyncio.to_thread(visited, f"{base}/callback?code=x"))[0] == 200
            assert await loopback.answer(5) == Secret("code")

    asyncio.run(test())


def test_a_refusal_ends_the_waiting() -> None:
    async def test() -> None:
        async with listening() as loopback:
            loopback.read = read
            url = f"http://127.0.0.1:{loopback.port}/refused"
            for _ in range(2):
                assert "Nobody was logged in." in (await asyncio.to_thread(visited, url))[1]
            with pytest.raises(OauthError, match="access_denied"):
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
