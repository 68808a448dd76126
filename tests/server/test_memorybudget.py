"""Test the bounds of memory held for clients: counting, cutting off, and undisturbed neighbours."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from h2.errors import ErrorCodes

from mooring.server.transport.http import Request, Response
from mooring.server.transport.memorybudget import HeldBytes, SourceNetwork
from mooring.server.transport.responsewriter import ResponseWriter
from mooring.server.transport.tlsconnection import CHECK_SECONDS, MIN_PROGRESS, STALLED_SECONDS, ReaderProgress
from tests.support.http2peer import Peer, peer
from tests.support.testca import ThrowawayCA
from tests.support.tlspeer import PATIENCE, Served, reply, request, serving

# -- whom the limits meet ------------------------------------------------------------------------------------------


class Connection:
    """Connection for which a given number of bytes is held."""

    recounts = 0

    def __init__(self, holdings: HeldBytes, network: str) -> None:
        self.held = 0
        self.truth = 0
        self.is_cut = False
        self._holdings = holdings
        self.source: SourceNetwork = holdings.admit(network, self)

    def hold(self, octets: int) -> Connection:
        self.truth = octets
        self._holdings.change(self.source, self, octets)
        return self

    def recount(self) -> int:
        Connection.recounts += 1
        return 0 if self.is_cut else self.truth

    def cut(self) -> None:
        self.is_cut = True


def cut(*connections: Connection) -> list[bool]:
    return [connection.is_cut for connection in connections]


def test_the_largest_connection_of_a_source_above_its_share_is_cut_and_no_neighbour() -> None:
    holdings = HeldBytes(total=1000, by_source=100)
    neighbour = Connection(holdings, "b").hold(90)
    small, large, last = (Connection(holdings, "a") for _ in range(3))
    small.hold(20)
    large.hold(70)
    last.hold(60)
    assert cut(neighbour, small, large, last) == [False, False, True, True]
    assert (holdings.size, holdings.cut_off) == (110, 2)


def test_of_equal_connections_the_oldest_is_cut_first() -> None:
    holdings = HeldBytes(total=1000, by_source=100)
    connections = [Connection(holdings, "a") for _ in range(11)]
    for connection in reversed(connections):
        connection.hold(10)
    assert cut(*connections) == [True] * 4 + [False] * 7, "as far as three quarters of the share"


def test_thousands_of_connections_with_little_each_are_a_source_above_its_share() -> None:
    holdings = HeldBytes()
    neighbour = Connection(holdings, "b").hold(64_000)
    connections = [Connection(holdings, "a").hold(64_000) for _ in range(10_000)]
    held = sum(connection.truth for connection in connections if not connection.is_cut)
    assert 0.5 * 256 * 2**20 < held <= 256 * 2**20
    assert not neighbour.is_cut


def test_one_reply_may_be_larger_than_the_share_of_its_source() -> None:
    holdings = HeldBytes(total=1000, by_source=100)
    large = Connection(holdings, "a").hold(900)
    others = [Connection(holdings, "a").hold(10) for _ in range(7)]
    assert not any(cut(large, *others))
    others.append(Connection(holdings, "a").hold(20))
    assert large.is_cut, "the others alone are more than three quarters of a share"
    assert cut(*others) == [False] * 7 + [True]


def test_when_all_hold_too_much_the_source_that_holds_most_loses_connections() -> None:
    holdings = HeldBytes(total=1000, by_source=400)
    modest = [Connection(holdings, f"modest-{number}").hold(60) for number in range(5)]
    greedy = [[Connection(holdings, network).hold(150) for _ in range(2)] for network in ("x", "y")]
    last = Connection(holdings, "z")
    last.hold(150)
    assert not last.is_cut, "who is written to is not who holds most"
    assert not any(cut(*modest))
    assert holdings.size <= 750
    assert [cut(*connections) for connections in greedy] == [[True, False], [True, False]]


def test_counts_are_made_exact_before_anybody_is_cut() -> None:
    holdings = HeldBytes(total=1000, by_source=100)
    first, second = Connection(holdings, "a").hold(90), Connection(holdings, "a").hold(10)
    first.truth = 0  # it has read since its last write
    second.hold(20)
    assert not any(cut(first, second))
    assert holdings.size == 20


def test_a_source_just_below_its_share_does_not_make_every_write_a_look_at_all_connections() -> None:
    holdings = HeldBytes(total=10**9, by_source=1_000_000)
    for _ in range(1000):
        Connection(holdings, "a").hold(1000)
    busy = Connection(holdings, "a")
    Connection.recounts = 0
    for turn in range(10_000):
        busy.hold(turn % 2 * 1000)
    assert Connection.recounts <= 2 * 1001


def test_a_large_reply_in_order_is_looked_at_again_only_after_a_quarter_of_a_share() -> None:
    holdings = HeldBytes(total=10**9, by_source=1_000_000)
    Connection(holdings, "a").hold(5_000_000)
    others = [Connection(holdings, "a") for _ in range(100)]
    Connection.recounts = 0
    for turn in range(2000):
        others[turn % 100].hold(turn)
    assert Connection.recounts <= 2 * 101
    holdings.check()
    others[0].hold(2500)
    assert Connection.recounts <= 3 * 101, "every few seconds it is held to its share again"


def test_who_ended_holds_nothing() -> None:
    holdings = HeldBytes()
    connection = Connection(holdings, "a").hold(10)
    for _ in range(2):
        holdings.dismiss(connection.source, connection)
    assert (holdings.size, holdings.source("a")) == (0, None)


# -- who moves -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waiting", "rate", "stalls"),
    [
        pytest.param(10**9, 0, True, id="nothing is taken"),
        pytest.param(10**9, MIN_PROGRESS / STALLED_SECONDS, False, id="slow but moving"),
        pytest.param(10**9, MIN_PROGRESS / STALLED_SECONDS / 2, True, id="a trickle"),
        pytest.param(100, 0, True, id="nothing of little"),
    ],
)
def test_readers(waiting: int, rate: float, stalls: bool) -> None:
    progress = ReaderProgress(0, waiting, 0.0)
    steps = [step * CHECK_SECONDS for step in range(1, 20)]
    found = [now for now in steps if progress.is_stalled(int(now * rate), waiting, now)]
    assert bool(found) == stalls
    if stalls:
        assert found[0] == STALLED_SECONDS
    assert STALLED_SECONDS + 2 * CHECK_SECONDS <= 30, "a stall begins up to a look before it is seen"


def test_a_reader_that_takes_all_of_little_moves() -> None:
    progress = ReaderProgress(0, 10, 0.0)
    assert not progress.is_stalled(10, 10, STALLED_SECONDS - 1)
    assert not progress.is_stalled(10, 10, STALLED_SECONDS)
    assert progress.is_stalled(19, 10, 2 * STALLED_SECONDS)


# -- over TLS ------------------------------------------------------------------------------------------------------


class Clock:
    """Turns the server's loop forward: timers come due without waiting for them."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._turned = 0.0
        real = served.loop.time
        served.loop.time = lambda: real() + self._turned  # type: ignore[method-assign] # time is a value in tests

    def turn(self, seconds: float) -> None:
        async def turn() -> None:
            self._turned += seconds
            for _ in range(5):
                await asyncio.sleep(0)

        self._served.run(turn)


async def handler(asked: Request) -> Response:
    if asked.path == "/watch":

        async def stream(frames: ResponseWriter) -> None:
            await frames.ended

        return Response(200, stream=stream)
    return Response(200, b"x" * int(asked.path.removeprefix("/")))


@pytest.fixture(scope="module")
def ca() -> ThrowawayCA:
    return ThrowawayCA()


@pytest.fixture
def served(ca: ThrowawayCA) -> Iterator[Served]:
    with serving(ca, handler) as server:
        yield server


LARGE = 32 << 20
SMALL_BUFFER = 64 << 10


@contextlib.contextmanager
def client(served: Served, directory: Path, source: str = "127.0.0.1") -> Iterator[ssl.SSLSocket]:
    """Connect a client with a small receive buffer."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    raw.settimeout(PATIENCE)
    raw.bind((source, 0))
    raw.connect(("127.0.0.1", served.port))
    with served.context(directory).wrap_socket(raw, server_hostname="localhost") as plain:
        yield plain


def open_connections(served: Served) -> int:
    return int(served.ask(lambda: len(served.listener.connections)))


def until_full(served: Served) -> None:
    """Wait until the kernel accepts no more bytes for any connection."""

    async def look() -> None:
        seen: list[int] = []
        while len({*seen[-4:], 0}) != 2 or len(seen) < 4:  # four times the same, and not nothing
            seen.append(sum(protocol.recount() for protocol in served.listener.connections))
            await asyncio.sleep(0.05)

    served.run(look)


def seconds_until_ended(served: Served, clock: Clock, left: int = 0) -> float:
    for step in range(1, 13):
        clock.turn(CHECK_SECONDS)
        if open_connections(served) == left:
            return step * CHECK_SECONDS
    raise AssertionError("the connection lives for more than a minute")


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(request(f"/{LARGE}"), id="one reply"),
        pytest.param(request("/60000") * 400, id="pipelined requests with small replies"),
        pytest.param(request(f"/{LARGE}", headers=("Connection: close",)), id="a reply that ends the connection"),
        pytest.param(request("/200000") * 40 + request("/watch"), id="a watch behind replies"),
    ],
)
def test_a_reader_that_stalls_over_http_1_ends_within_30_seconds(served: Served, tmp_path: Path, asked: bytes) -> None:
    clock = Clock(served)
    with client(served, tmp_path) as plain:
        plain.sendall(asked)
        until_full(served)
        assert STALLED_SECONDS <= seconds_until_ended(served, clock) <= 30
    assert served.ask(lambda: (served.listener.held_bytes.size, served.listener.held_bytes.cut_off)) == (0, 1)
    assert served.ask(lambda: len(served.application.tasks)) == 0


def test_a_reader_that_is_slow_and_moves_gets_everything(served: Served, tmp_path: Path) -> None:
    clock = Clock(served)
    with client(served, tmp_path) as plain:
        plain.sendall(request(f"/{LARGE}"))
        until_full(served)
        taken = 0
        for _ in range(
            20
        ):  # 20 s read less than the kernel's send queue, of which a third must be free before it takes more
            for _ in range(10):
                taken += len(plain.recv(1 << 14))
            clock.turn(CHECK_SECONDS)
        assert open_connections(served) == 1
        assert taken < LARGE / 4
        while taken < LARGE:
            taken += len(plain.recv(1 << 20))


def test_a_reader_that_stalls_with_everything_in_the_kernel_lives(served: Served, tmp_path: Path) -> None:
    clock = Clock(served)
    with client(served, tmp_path) as plain:
        plain.sendall(request("/60000"))
        for _ in range(10):
            clock.turn(CHECK_SECONDS)
        assert len(reply(plain)[2]) == 60_000


def test_the_holders_are_cut_and_not_who_asks_next(served: Served, tmp_path: Path) -> None:
    holdings = served.listener.held_bytes = HeldBytes(total=128 << 20, by_source=64 << 20)
    with contextlib.ExitStack() as stack:
        administrator = stack.enter_context(client(served, tmp_path, "127.0.0.2"))
        other_source = stack.enter_context(client(served, tmp_path, "127.0.0.2"))
        other_source.sendall(request(f"/{LARGE}"))
        until_full(served)
        for _ in range(6):
            plain = stack.enter_context(client(served, tmp_path))
            plain.sendall(request(f"/{LARGE}"))
            until_full(served)
            administrator.sendall(request("/5"))
            assert reply(administrator)[2] == b"xxxxx"
        neighbour = stack.enter_context(client(served, tmp_path))
        neighbour.sendall(request("/7"))
        assert reply(neighbour)[2] == b"xxxxxxx"
        assert served.ask(lambda: holdings.size) <= 128 << 20
        assert served.ask(lambda: holdings.cut_off) >= 3
        taken = 0
        while taken < LARGE:
            taken += len(other_source.recv(1 << 20))


def octets(client: Peer, stream: int) -> int:
    return sum(map(len, client.replies[stream].pieces))


def test_a_stream_whose_window_stays_shut_is_reset_alone(served: Served, tmp_path: Path) -> None:
    clock = Clock(served)
    with peer(served, tmp_path, windows=False) as link:
        link.h2.increment_flow_control_window(LARGE)
        link.flush()
        stalled, watch = link.ask("/1000000"), link.ask("/watch")
        link.until(lambda: octets(link, stalled) == 65_535 and link.replies[watch].status == 200)
        assert served.ask(lambda: served.listener.held_bytes.size) == 1_000_000 - 65_535
        for _ in range(6):
            clock.turn(CHECK_SECONDS)
        assert link.reply(stalled).reset == ErrorCodes.ENHANCE_YOUR_CALM
        assert len(link.get("/5").body) == 5
        assert served.ask(lambda: served.listener.held_bytes.size) == 0


def test_a_stream_whose_window_opens_now_and_then_goes_on(served: Served, tmp_path: Path) -> None:
    clock = Clock(served)
    with peer(served, tmp_path, windows=False) as link:
        link.h2.increment_flow_control_window(LARGE)
        link.flush()
        slow = link.ask("/1000000")
        link.until(lambda: octets(link, slow) == 65_535)
        for step in range(1, 20):
            clock.turn(CHECK_SECONDS)
            link.h2.increment_flow_control_window(MIN_PROGRESS, slow)
            link.flush()
            link.until(lambda wanted=65_535 + step * MIN_PROGRESS: octets(link, slow) == wanted)  # type: ignore[misc] # mypy infers no type of a default
        assert link.replies[slow].reset is None


@pytest.mark.parametrize("trickle", [0, 100], ids=["shut", "opened octet by octet"])
def test_a_connection_whose_window_stays_shut_ends(served: Served, tmp_path: Path, trickle: int) -> None:
    clock = Clock(served)
    with peer(served, tmp_path, window=LARGE, windows=False) as link:
        streams = [link.ask("/1000000") for _ in range(2)]
        link.until(lambda: sum(octets(link, stream) for stream in streams) == 65_535)
        for _ in range(6):
            clock.turn(CHECK_SECONDS)
            if trickle and open_connections(served):
                link.h2.increment_flow_control_window(trickle)
                link.flush()
        assert open_connections(served) == 0


def test_a_body_over_http_2_is_counted_until_its_stream_ends(ca: ThrowawayCA, tmp_path: Path) -> None:
    held: list[int] = []

    async def take(asked: Request) -> Response:
        await asked.body()
        held.append(house.listener.held_bytes.size)
        return Response(200)

    with serving(ca, take) as house, peer(house, tmp_path) as link:
        stream = link.ask("/", "POST", body=b"x" * 100_000)
        assert link.reply(stream).status == 200
        assert held[0] >= 100_000
        assert house.ask(lambda: house.listener.held_bytes.size) < 1000
