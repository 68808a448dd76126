"""Load balancer of an agent on real sockets and a manual clock."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from mooring.agent import loadbalancer
from mooring.agent.loadbalancer import (
    CHECK_SECONDS,
    DIAL_SECONDS,
    FULL_SECONDS,
    HALF_CLOSED_SECONDS,
    SILENT_SECONDS,
    LoadBalancer,
)
from mooring.agent.tunnel import READ_BUFFER, WRITE_BUFFER, Dialogue
from mooring.errors import ConfigError
from tests.support.manualclock import ManualClock, settle

ENTROPY = b"machine 1"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


class Peer:
    """A server in this loop that answers each line with its own name, or as `serve` says."""

    def __init__(self, serve: Serve | None = None, host: str = "127.0.0.1") -> None:
        self._serve = serve or self._answer
        self._host = host
        self._server: asyncio.Server | None = None
        self.writers: list[asyncio.StreamWriter] = []
        self.port = 0

    @property
    def address(self) -> str:
        return f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}"

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._accepted, self._host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Accept no more connections. Open ones stay open."""
        assert self._server is not None
        self._server.close()

    async def stop(self) -> None:
        self.refuse()
        for writer in self.writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with suppress(OSError):
            await self._serve(reader, writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            writer.write(f"{self.address}\n".encode())
            await writer.drain()
        writer.close()


class Client:
    """A connection to the load balancer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self) -> str:
        """Return the name of the server; "" when the connection has ended."""
        try:
            self.writer.write(b"who\n")
            return (await self.reader.readline()).decode().strip()
        except OSError:
            return ""

    async def ends(self) -> None:
        """Wait until the load balancer has ended the connection."""
        with suppress(OSError):
            assert await self.reader.read(1) == b""


class Setting:
    """Servers, clients and a load balancer that end with the test."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.state_file = folder / "agent" / "etc" / "lb.json"
        self.peers: list[Peer] = []
        self.clients: list[Client] = []
        self.balancers: list[LoadBalancer] = []

    async def peer(self, serve: Serve | None = None, host: str = "127.0.0.1") -> Peer:
        peer = Peer(serve, host)
        await peer.listen()
        self.peers.append(peer)
        return peer

    async def balancer(self, seed: Peer, *learned: Peer) -> LoadBalancer:
        made = LoadBalancer(0, [f"https://{seed.address}"], self.clock, self.state_file, ENTROPY)
        await made.start()
        self.balancers.append(made)
        made.update([peer.address for peer in learned])
        return made

    async def client(self, balancer: LoadBalancer) -> Client:
        host, _, port = balancer.address.partition(":")
        client = Client(*await asyncio.open_connection(host, int(port)))
        self.clients.append(client)
        return client

    async def ask(self, balancer: LoadBalancer) -> str:
        return await (await self.client(balancer)).ask()

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until the sockets have brought something about. The limit of the test ends a wait in vain."""
        while not reached():
            await asyncio.sleep(0.001)

    async def end(self) -> None:
        for client in self.clients:
            client.writer.close()
            with suppress(OSError):
                await client.writer.wait_closed()
        for balancer in self.balancers:
            await balancer.stop()
        for peer in self.peers:
            await peer.stop()
        await settle()


@asynccontextmanager
async def setting(folder: Path) -> AsyncIterator[Setting]:
    made = Setting(folder)
    try:
        yield made
    finally:
        await made.end()


def of(servers: list[Peer], address: str) -> Peer:
    return next(peer for peer in servers if peer.address == address)


# ── which server ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_connections_go_to_the_seed_until_something_is_learned(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as to:
            seed, other = await to.peer(), await to.peer()
            balancer = await to.balancer(seed)
            assert await to.ask(balancer) == seed.address
            balancer.update([other.address])
            assert await to.ask(balancer) == other.address
            balancer.update([])
            assert await to.ask(balancer) == other.address, "an empty list changes nothing"

    asyncio.run(run())


def test_a_server_that_refuses_is_passed_over_and_the_next_one_stays_in_use(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as to:
            seed, first, second = await to.peer(), await to.peer(), await to.peer()
            balancer = await to.balancer(seed, first, second)
            chosen = of([first, second], await to.ask(balancer))
            remaining = second if chosen is first else first
            await chosen.stop()
            assert await to.ask(balancer) == remaining.address
            await chosen.listen()
            await to.clock.advance(CHECK_SECONDS)
            await to.until(lambda: not balancer.servers.failed)
            assert await to.ask(balancer) == remaining.address

    asyncio.run(run())


def test_a_server_that_does_not_answer_the_connection_is_given_up_after_its_time(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as to:
            seed = await to.peer()
            with socket.socket() as full, socket.socket() as waiting, socket.socket() as dropped:
                full.bind(("127.0.0.1", 0))
                full.listen(0)
                for one in (waiting, dropped):  # the queue of a listener without place drops further connections
                    one.setblocking(False)
                    one.connect_ex(full.getsockname())
                balancer = await to.balancer(seed)
                balancer.update([f"127.0.0.1:{full.getsockname()[1]}"])
                asking = asyncio.create_task(to.ask(balancer))
                await to.until(lambda: to.clock.sleepers == 2)
                await to.clock.advance(DIAL_SECONDS)
                assert await asking == seed.address

    asyncio.run(run())


def test_an_ipv6_server(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as to:
            peer = await to.peer(host="::1")
            assert await to.ask(await to.balancer(peer)) == peer.address

    with suppress(OSError), socket.socket(socket.AF_INET6) as found:
        found.bind(("::1", 0))
        asyncio.run(run())
        return
    pytest.skip("this machine has no IPv6 loopback address")


def test_when_all_servers_failed_the_connection_ends_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with setting(tmp_path) as to:
            seed, learned = await to.peer(), await to.peer()
            balancer = await to.balancer(seed, learned)
            for peer in (seed, learned):
                await peer.stop()
            for _ in range(3):
                assert await to.ask(balancer) == ""
            assert [record.message for record in caplog.records if "all servers failed" in record.message] == [
                "load balancer: all servers failed: "
                + ", ".join(f"{address} (connection refused)" for address in sorted((seed.address, learned.address)))
            ]
            await learned.listen()
            assert await to.ask(balancer) == learned.address, "a server that failed is tried when there is no other"

    with caplog.at_level(logging.INFO, "mooring.agent"):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('192.0.2.1', 6443)"), "connection refused"),
        (OSError(101, "Connect call failed ('2001:db8::1', 6443, 0, 0)"), "network is unreachable"),
        (TimeoutError(), "no connection within 5 s"),
        (TimeoutError(110, "Connect call failed"), "connection timed out"),
        (socket.gaierror(-2, "Name or service not known"), "the name does not resolve: Name or service not known"),
        (
            OSError(
                "Multiple exceptions: [Errno 111] Connect call failed ('::1', 1), [Errno 101] Connect call failed ('192.0.2.1', 1)"
            ),
            "Multiple exceptions: [Errno 111] Connect call failed ('::1', 1), [Errno 101] Connect call failed ('192.0.2.1', 1)",
        ),
    ],
)
def test_a_server_that_is_not_reached_is_named_with_the_reason(
    error: OSError, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client of the load balancer sees an ended connection to 127.0.0.1, which does not name the server."""

    async def run() -> None:
        connect = asyncio.get_running_loop().create_connection

        async def fail(protocol: Any, host: str, port: int, **more: Any) -> Any:
            if host == "cp.example":
                raise error
            return await connect(protocol, host, port, **more)

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fail)
        async with LoadBalancer(0, ["https://cp.example:6443"], ManualClock()) as balancer:
            reader, writer = await asyncio.open_connection(*balancer.address.split(":"))
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    with caplog.at_level(logging.ERROR, "mooring.agent"):
        asyncio.run(run())
    assert caplog.messages == [f"load balancer: all servers failed: cp.example:6443 ({reason})"]


# ── health ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_check_closes_the_connections_to_a_server_that_accepts_no_more(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as to:
            seed, other = await to.peer(), await to.peer()
            balancer = await to.balancer(seed, seed, other)
            client = await to.client(balancer)
            chosen = of([seed, other], await client.ask())
            await to.clock.advance(CHECK_SECONDS)
            chosen.refuse()
            await to.clock.advance(CHECK_SECONDS)
            await client.ends()
            assert await to.ask(balancer) == (other if chosen is seed else seed).address

    asyncio.run(run())


def test_a_server_that_sends_is_healthy_without_a_check(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as to:
            seed, other = await to.peer(), await to.peer()
            balancer = await to.balancer(seed, seed, other)
            client = await to.client(balancer)
            chosen = of([seed, other], await client.ask())
            chosen.refuse()
            for _ in range(3):
                await to.clock.advance(CHECK_SECONDS)
                assert await client.ask() == chosen.address

    asyncio.run(run())


def test_a_single_server_is_not_checked(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as to:
            seed = await to.peer()
            balancer = await to.balancer(seed)
            client = await to.client(balancer)
            await client.ask()
            for _ in range(3):
                await to.clock.advance(CHECK_SECONDS)
            assert len(seed.writers) == 1

    asyncio.run(run())


def test_the_fallback_is_left_when_a_learned_server_is_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as to:
            seed, learned = await to.peer(), await to.peer()
            balancer = await to.balancer(seed, learned)
            await learned.stop()
            client = await to.client(balancer)
            assert await client.ask() == seed.address
            await to.clock.advance(CHECK_SECONDS)
            assert await client.ask() == seed.address
            await learned.listen()
            await to.clock.advance(CHECK_SECONDS)
            await client.ends()
            assert await to.ask(balancer) == learned.address

    asyncio.run(run())


def test_a_server_that_leaves_the_list_loses_its_connections(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as to:
            first, second = await to.peer(), await to.peer()
            balancer = await to.balancer(first, first)
            client = await to.client(balancer)
            assert await client.ask() == first.address
            balancer.update([second.address])
            await client.ends()

    asyncio.run(run())


def test_a_server_that_hangs_is_left_when_its_client_gives_up(tmp_path: Path) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def run() -> None:
        async with setting(tmp_path) as to:
            hanging, seed = await to.peer(hang), await to.peer()
            balancer = await to.balancer(seed, hanging)
            impatient, patient = await to.client(balancer), await to.client(balancer)
            for client, waited in ((impatient, SILENT_SECONDS - 1), (patient, 1)):
                client.writer.write(b"who\n")
                await to.until(
                    lambda: any(
                        one.dialogue is Dialogue.ASKED and not one.is_half_closed for one in balancer.open_connections
                    )
                )
                to.clock.spend(waited)
                assert not balancer.servers.failed
                client.writer.close()
                await to.until(lambda: any(one.is_half_closed for one in balancer.open_connections))
            await to.until(lambda: len(balancer.open_connections) == 1)
            assert balancer.servers.failed == {hanging.address}
            assert await to.ask(balancer) == seed.address

    asyncio.run(run())


def read_although_paused(transport: Any, descriptor: int, callback: Callable[..., None], *arguments: object) -> None:
    """Start to read as CPython 3.11.2 does, also where the protocol has paused reading in `connection_made`."""
    if not transport.is_closing():
        transport._loop._add_reader(descriptor, callback, *arguments)


def test_what_a_client_sends_before_its_server_is_connected_reaches_that_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncio.selector_events._SelectorTransport._add_reader", read_although_paused)

    async def run() -> None:
        async with setting(tmp_path) as to:
            seed = await to.peer()
            balancer = await to.balancer(seed)
            connect, may_connect = balancer._connect_protocol, asyncio.Event()

            async def connect_late(*arguments: Any) -> None:
                await may_connect.wait()
                await connect(*arguments)

            monkeypatch.setattr(balancer, "_connect_protocol", connect_late)
            client = await to.client(balancer)
            client.writer.write(b"who\n")
            await to.until(lambda: len(balancer.open_connections) == 1)
            await settle()
            may_connect.set()
            assert (await client.reader.readline()).decode().strip() == seed.address

    asyncio.run(run())


@pytest.mark.parametrize(
    ("sent", "fails"),
    [
        pytest.param(b"", False, id="a TLS server waits for the ClientHello"),
        pytest.param(b"who\n", True, id="a server that was asked has to answer"),
    ],
)
def test_a_server_counts_as_silent_only_after_the_client_has_sent_something(
    tmp_path: Path, sent: bytes, fails: bool
) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def run() -> None:
        async with setting(tmp_path) as to:
            seed, stage = await to.peer(hang), Dialogue.ASKED if sent else Dialogue.SILENT
            balancer = await to.balancer(seed)
            client = await to.client(balancer)
            client.writer.write(sent)
            await to.until(
                lambda: [(one.dialogue, one.server) for one in balancer.open_connections] == [(stage, seed.address)]
            )
            to.clock.spend(SILENT_SECONDS)
            client.writer.close()
            await to.until(lambda: all(one.is_half_closed for one in balancer.open_connections))
            assert (seed.address in balancer.servers.failed) is fails

    asyncio.run(run())


def test_a_server_that_was_silent_stays_failed_when_its_connection_is_noted_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def run() -> None:
        async with setting(tmp_path) as to:
            seed = await to.peer(hang)
            balancer = await to.balancer(seed)
            connect, may_return = balancer._connect_protocol, asyncio.Event()

            async def return_late(*arguments: Any) -> None:
                await connect(*arguments)
                await may_return.wait()

            monkeypatch.setattr(balancer, "_connect_protocol", return_late)
            client = await to.client(balancer)
            client.writer.write(b"who\n")
            await to.until(lambda: [one.dialogue for one in balancer.open_connections] == [Dialogue.ASKED])
            to.clock.spend(SILENT_SECONDS)
            client.writer.close()
            await to.until(lambda: not balancer.open_connections)
            may_return.set()
            await settle()
            assert balancer.servers.failed == {seed.address}

    asyncio.run(run())


# ── what flows ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_end_of_one_direction_leaves_the_other(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as to:

            async def answer_after_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                request = await reader.read()
                writer.write(b"%d octets" % len(request))
                writer.close()

            balancer = await to.balancer(await to.peer(answer_after_the_end))
            client = await to.client(balancer)
            client.writer.write(b"x" * 300_000)
            client.writer.write_eof()
            assert await client.reader.read() == b"300000 octets"
            await to.until(lambda: not balancer.open_connections)

    asyncio.run(run())


def test_a_server_that_has_said_all_still_hears_the_client(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as to:
            heard: list[bytes] = []

            async def end_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write_eof()
                heard.append(await reader.read())
                writer.close()

            client = await to.client(await to.balancer(await to.peer(end_first)))
            assert await client.reader.read() == b""
            client.writer.write(b"late")
            client.writer.write_eof()
            await to.until(lambda: heard == [b"late"])

    asyncio.run(run())


def test_a_connection_that_one_side_has_finished_ends_after_a_time_of_silence(tmp_path: Path) -> None:
    async def never_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        await asyncio.Event().wait()

    async def run() -> None:
        async with setting(tmp_path) as to:
            balancer = await to.balancer(await to.peer(never_end))
            client = await to.client(balancer)
            client.writer.write_eof()
            await to.until(lambda: any(one.is_half_closed for one in balancer.open_connections))
            await to.clock.advance(HALF_CLOSED_SECONDS - 2 * CHECK_SECONDS)
            assert balancer.open_connections
            await to.clock.advance(2 * CHECK_SECONDS)
            await client.ends()
            assert not balancer.open_connections

    asyncio.run(run())


def test_a_slow_reader_stops_its_sender(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as to:
            written = asyncio.Event()
            total = 64 << 20

            async def send_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(b"x" * total)
                await writer.drain()
                written.set()
                writer.close()

            balancer = await to.balancer(await to.peer(send_all))
            client = await to.client(balancer)
            (connection,) = balancer.open_connections
            await to.until(lambda: connection.is_paused)
            assert connection.waiting_octets <= WRITE_BUFFER + READ_BUFFER
            assert not written.is_set()
            count = 0
            while data := await client.reader.read(1 << 20):
                count += len(data)
            assert count == total

    asyncio.run(run())


def test_the_reset_of_a_server_ends_the_connection(tmp_path: Path) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await reader.readline()
        writer.transport.abort()

    async def run() -> None:
        async with setting(tmp_path) as to:
            balancer = await to.balancer(await to.peer(reset))
            assert await to.ask(balancer) == ""
            assert not balancer.open_connections

    asyncio.run(run())


def test_too_many_connections_close_the_one_idle_longest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loadbalancer, "MAX_CONNECTIONS", 2)

    async def run() -> None:
        async with setting(tmp_path) as to:
            peer = await to.peer()
            balancer = await to.balancer(peer)
            first, second = await to.client(balancer), await to.client(balancer)
            assert await first.ask() == await second.ask() == peer.address
            await to.clock.advance(CHECK_SECONDS)
            to.clock.spend(CHECK_SECONDS)
            assert await first.ask() == peer.address
            assert await to.ask(balancer) == peer.address
            await second.ends()
            assert await first.ask() == peer.address

    asyncio.run(run())


def test_a_program_that_opens_too_many_connections_fills_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loadbalancer, "MAX_CONNECTIONS", 1)

    async def run() -> None:
        async with setting(tmp_path) as to:
            balancer = await to.balancer(await to.peer())
            for minute in (1, 2):
                for _ in range(5):
                    assert await to.ask(balancer)
                assert caplog.text.count("there are 1 connections") == minute
                to.clock.spend(FULL_SECONDS)

    asyncio.run(run())


# ── start, stop and the saved list ───────────────────────────────────────────────────────────────────────────────────


def test_the_saved_list_outlives_a_restart_while_the_url_is_the_same(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as to:
            seed, learned, other = await to.peer(), await to.peer(), await to.peer()
            await (await to.balancer(seed, learned)).stop()
            assert to.state_file.stat().st_mode & 0o777 == 0o600
            await seed.stop()
            assert await to.ask(await to.balancer(seed)) == learned.address, "the seed is down: the list was saved"
            changed = await to.balancer(other)
            assert await to.ask(changed) == other.address, "another --server drops it"
            assert json.loads(to.state_file.read_bytes()) == {
                "ServerURL": f"https://{other.address}",
                "ServerAddresses": [other.address],
            }

    asyncio.run(run())


@pytest.mark.parametrize("damage", [b"", b"{", b"x" * (1 << 17)], ids=["empty", "cut off", "too large"])
def test_a_damaged_list_is_replaced(tmp_path: Path, damage: bytes) -> None:
    async def run() -> None:
        async with setting(tmp_path) as to:
            peer = await to.peer()
            to.state_file.parent.mkdir(parents=True)
            to.state_file.write_bytes(damage)
            assert await to.ask(await to.balancer(peer)) == peer.address
            assert json.loads(to.state_file.read_bytes())["ServerAddresses"] == [peer.address]

    asyncio.run(run())


def test_a_list_that_cannot_be_saved_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with setting(tmp_path) as to:
            peer = await to.peer()
            (tmp_path / "agent").write_bytes(b"a file, where a directory should be")
            assert await to.ask(await to.balancer(peer)) == peer.address
        assert "the list of servers is not saved" in caplog.text

    asyncio.run(run())


def test_a_port_that_is_taken_is_an_error_that_names_the_flag(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as to:
            peer = await to.peer()
            second = LoadBalancer(peer.port, ["https://127.0.0.1:1"], to.clock, to.state_file)
            with pytest.raises(ConfigError, match=f"127.0.0.1:{peer.port}: another program .*--load-balancer-port"):
                await second.start()
            await second.stop()

    asyncio.run(run())


def test_an_address_that_cannot_be_bound_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loadbalancer, "LOOPBACK", "192.0.2.1")
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:0: .*--lb-server-port"):
        asyncio.run(LoadBalancer(0, ["https://127.0.0.1:1"], ManualClock(), port_flag="--lb-server-port").start())


def test_without_a_server_connections_end_until_one_is_learned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with setting(tmp_path) as to, LoadBalancer(0, (), to.clock) as balancer:
            assert await to.ask(balancer) == ""
            peer = await to.peer()
            balancer.update([peer.address])
            assert await to.ask(balancer) == peer.address
        assert list(tmp_path.iterdir()) == [], "no list is saved without a file for it"

    asyncio.run(run())
    assert "load balancer: all servers failed: none is known yet" in caplog.messages


def test_clients_come_back_after_a_restart_on_the_same_port(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as to:
            peer = await to.peer()
            first = await to.balancer(peer)
            client = await to.client(first)
            assert await client.ask() == peer.address
            await first.stop()
            await client.ends()
            async with LoadBalancer(
                int(first.address.rpartition(":")[2]), [f"https://{peer.address}"], to.clock
            ) as second:
                assert await to.ask(second) == peer.address

    asyncio.run(run())


def test_a_load_balancer_is_no_server_of_itself(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as to:
            peer = await to.peer()
            await peer.stop()
            own = LoadBalancer(peer.port, [f"https://{peer.address}"], to.clock, to.state_file)
            with pytest.raises(ConfigError, match="this machine's own load balancer"):
                await own.start()

    asyncio.run(run())


@pytest.mark.parametrize("name", ["localhost", "127.1", "[::ffff:127.0.0.1]"])
def test_a_name_that_leads_back_to_the_load_balancer_is_a_server_that_does_not_answer(
    tmp_path: Path, name: str
) -> None:
    async def run() -> None:
        async with setting(tmp_path) as to:
            peer = await to.peer()
            balancer = await to.balancer(peer)
            own = f"{name}:{balancer.address.rpartition(':')[2]}"
            balancer.update([own])
            peer.refuse()
            client = await to.client(balancer)
            await client.ends()
            assert {*balancer.servers.failed} == {*balancer.servers.known}
            assert balancer.open_connections == ()

    asyncio.run(run())


def test_stopping_ends_open_connections_and_those_that_are_being_made(tmp_path: Path) -> None:
    async def run() -> None:
        async with setting(tmp_path) as to:
            peer = await to.peer()
            async with LoadBalancer(0, [f"https://{peer.address}"], to.clock, to.state_file) as balancer:
                assert balancer.url == f"https://{balancer.address}"
                client = await to.client(balancer)
                assert await client.ask() == peer.address
                late = await to.client(balancer)
            await client.ends()
            await late.ends()
            assert not balancer.open_connections

    asyncio.run(run())
