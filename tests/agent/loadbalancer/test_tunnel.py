"""Load balancer behind an HTTP proxy, on real sockets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from mooring.agent import tunnel
from mooring.agent.loadbalancer import LoadBalancer
from mooring.agent.tunnel import Probe
from mooring.client.http.connection import k3s_proxies
from mooring.errors import ConfigError
from mooring.trust.httpproxy import Proxy
from tests.support.manualclock import ManualClock
from tests.support.ports import free_port

CONNECTED = b"HTTP/1.1 200 Connected\r\n\r\n"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[int]:
    """Serve connections, and wait for their ends."""
    tasks: list[asyncio.Task[Any] | None] = []

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        with suppress(OSError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async with await asyncio.start_server(accepted, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*(task for task in tasks if task is not None))


async def counts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the number of octets once the client has finished."""
    writer.write(str(len(await reader.read(-1))).encode())
    await writer.drain()


def leading(port: int, heads: list[bytes], reply: bytes = CONNECTED) -> Serve:
    """A proxy that leads every tunnel to `port`; one with another `reply` ends then."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        for octet in range(0, len(reply), 7):  # in pieces
            writer.write(reply[octet : octet + 7])
            await writer.drain()
        if reply != CONNECTED:
            return
        there, back = await asyncio.open_connection("127.0.0.1", port)
        back.write(await reader.read(-1))
        back.write_eof()
        writer.write(await there.read(-1))
        await writer.drain()
        back.close()
        await back.wait_closed()

    return serve


async def asked(balancer: LoadBalancer) -> bytes:
    host, _, port = balancer.address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(b"x" * 100_000)
        writer.write_eof()
        return await reader.read(-1)
    except OSError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://192.0.2.1:6443", b"192.0.2.1:6443"),
        ("https://api.test.", b"api.test.:443"),
        ("https://[2001:db8::1]:6443", b"[2001:db8::1]:6443"),
        ("https://[fe80::1%25eth0]:6443", b"[fe80::1]:6443"),
    ],
)
def test_connections_go_through_the_proxy_both_ways_to_their_end(
    url: str, target: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: list[bytes] = []

    async def run() -> bytes:
        async with serving(counts) as port, serving(leading(port, heads)) as proxy_port:
            monkeypatch.setenv("HTTPS_PROXY", f"http://user:s%40cret@127.0.0.1:{proxy_port}")
            async with LoadBalancer(0, [url], ManualClock(), proxies=k3s_proxies) as balancer:
                return await asked(balancer)

    monkeypatch.setenv("K3S_AGENT_HTTP_PROXY_ALLOWED", "true")
    assert asyncio.run(run()) == b"100000"
    authorization = b"Proxy-Authorization: Basic dXNlcjpzQGNyZXQ="
    assert heads == [b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n\r\n" % (target, target, authorization)]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"HTTP/1.1 403 For\x07bidden\r\n\r\n", "refuses: 403 For bidden"),
        (b"HTTP/1.0 407 Proxy Authentication Required\r\n\r\n", "refuses: 407 Proxy Authentication Required"),
        (b"HTTP/1.1 407 not secret\r\n\r\n", "refuses"),
        (b"HTTP/1.1 302 Found\r\nLocation: https://login.test\r\n\r\n", "refuses: 302 Found"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "does not connect: the answer is not that of a proxy"),
        (b"HTTP/1.1 200 OK\r\n\r\nsomething", "does not connect: the answer is not that of a proxy"),
        (b"x" * 20_000, "does not connect: the answer is not that of a proxy"),
        (b"", "does not connect: it closed the connection"),
    ],
)
def test_a_proxy_that_opens_no_tunnel_is_named_without_its_password(
    reply: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> int:
        async with serving(leading(0, [], reply)) as port:
            proxy = Proxy(f"http://user:secret@127.0.0.1:{port}", "HTTPS_PROXY")
            clock = ManualClock()
            async with LoadBalancer(0, ["https://192.0.2.1:6443"], clock, proxies=lambda url: proxy) as balancer:
                assert await asked(balancer) == b""
        return port

    with caplog.at_level(logging.ERROR, "mooring.agent"):
        port = asyncio.run(run())
    assert [record.getMessage() for record in caplog.records] == [
        f"load balancer: all servers failed: 192.0.2.1:6443 (the proxy http://127.0.0.1:{port} (from HTTPS_PROXY) {reason})"
    ]


def test_a_proxy_that_does_not_answer_is_named() -> None:
    proxy = Proxy(f"http://127.0.0.1:{free_port()}", "https_proxy")
    with pytest.raises(tunnel.TunnelError, match=r"\(from https_proxy\) does not connect: connection refused$"):
        asyncio.run(tunnel.connect(proxy, "192.0.2.1:6443", asyncio.Protocol()))


def test_a_tunnel_that_is_given_up_is_closed() -> None:
    async def run() -> None:
        reached, ended = asyncio.Event(), asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            reached.set()
            with suppress(ConnectionResetError):
                await reader.read(-1)
            ended.set()

        async with serving(silent) as port:
            asking = asyncio.create_task(
                tunnel.connect(Proxy(f"http://127.0.0.1:{port}", "HTTPS_PROXY"), "192.0.2.1:6443", Probe())
            )
            await reached.wait()
            asking.cancel()
            await ended.wait()

    asyncio.run(run())


def test_a_check_ends_its_tunnel_at_once() -> None:
    async def run() -> bytes:
        ended: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def opening(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(CONNECTED)
            ended.set_result(await reader.read(-1))

        async with serving(opening) as port:
            await tunnel.connect(Proxy(f"http://127.0.0.1:{port}", "HTTPS_PROXY"), "192.0.2.1:6443", Probe())
            return await ended

    assert asyncio.run(run()) == b""


@pytest.mark.parametrize("url", ["https://user:secret@proxy.test", "socks5://user:secret@proxy.test"])
def test_a_proxy_of_another_kind_is_an_error_at_the_start(url: str) -> None:
    with pytest.raises(
        ConfigError, match=r"proxy\.test \(from HTTPS_PROXY\): the load balancer uses http proxies only$"
    ):
        LoadBalancer(0, ["https://192.0.2.1"], ManualClock(), proxies=lambda server: Proxy(url, "HTTPS_PROXY"))
