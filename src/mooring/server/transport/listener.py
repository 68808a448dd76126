"""Listener: accepts connections on the sockets of one address, bounds and drains them, and shares them between processes."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from OpenSSL import SSL

from mooring.clock import SystemClock
from mooring.listensockets import BACKLOG, bound_port, close_all, format_addresses, listen
from mooring.reminders import Reminders
from mooring.server.sharedmemory import ALONE, Counted, WorkerMemory
from mooring.server.transport.memorybudget import HeldBytes, SourceNetwork
from mooring.server.transport.tlsconnection import CHECK_SECONDS, ApplicationProtocol, TlsProtocol

# Accepts connections from listening sockets that several processes share, so that each takes its part.
#
# Rules kept here:
# * The numbers of connections of all workers are in shared memory (`mooring.server.sharedmemory`). A worker that has more than
#   another waits a moment before it accepts, so that the other one is faster. It then accepts, whether the other one did or not:
#   one that is busy or stopped delays a new connection by no more than `YIELD_SECONDS`.
# * One descriptor is kept for the time when there is no other: with it connections are accepted and closed at once, so that their
#   clients do not wait.
# * Few connections are accepted in a turn of the loop, so that a burst is shared out.

log = logging.getLogger("mooring.server")

ACCEPTS_PER_TURN = 2
"""Connections that are accepted in one turn of the loop. A handshake takes about 1 ms, in which the others accept."""
YIELD_SECONDS = 0.002
"""Time for which a worker with more connections leaves new ones to the others: two handshakes."""
SLACK_PART = 8
"""A worker may have one part in so many more than another before it yields: nothing of few connections, a little of many."""
PAUSE_SECONDS = 1.0
"""Time without accepting after the process or the system ran out of descriptors or memory."""
TURNED_AWAY = 256
"""Connections that are closed in a turn without descriptors: each takes some 20 µs."""
_OUT_OF_MEANS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class SharedListener:
    """Accepts for one worker. Implements as much of `asyncio.Server` as `Listener` uses."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        make_protocol: Callable[[], asyncio.Protocol],
        share: WorkerMemory,
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        """`make_protocol` makes a protocol that counts its connection in `Counted.CONNECTIONS` of `share`.

        `refused` is called for each connection that was closed because no descriptor is left.
        """
        assert share.memory is not None
        self._loop = asyncio.get_running_loop()
        self.sockets = tuple(sockets)
        self._make_protocol = make_protocol
        self._worker = share.worker
        self._admitted, self._accepting = (share.memory.row(one) for one in (Counted.CONNECTIONS, Counted.ACCEPTING))
        self._connecting: set[asyncio.Task[object]] = set()
        self._resting: asyncio.TimerHandle | None = None
        self._closed = False
        self._refused = refused
        self._reserve: int | None = None
        self._reminders = Reminders(self._loop.time)

    def start(self) -> None:
        """Begin to accept."""
        self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._publish()
        for one in self.sockets:
            self._loop.add_reader(one.fileno(), self._readable, one)

    def close(self) -> None:
        """Stop accepting; the sockets stay open for the other workers. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._accepting[self._worker] = 0
        if self._resting is not None:
            self._resting.cancel()
        if self._reserve is not None:
            os.close(self._reserve)
        for one in self.sockets:
            self._loop.remove_reader(one.fileno())
            one.close()  # the descriptor of this process; the parent and the other workers have theirs

    @property
    def connecting(self) -> bool:
        """True while an accepted connection has no protocol yet."""
        return bool(self._connecting)

    def least(self) -> int:
        """Return the least number of connections of a worker that accepts; 0 without one."""
        pairs = zip(self._admitted, self._accepting, strict=True)
        return min((admitted + accepting - 1 for admitted, accepting in pairs if accepting), default=0)

    def _publish(self) -> None:
        if not self._closed:
            self._accepting[self._worker] = 1 + len(self._connecting)

    def _readable(self, listening: socket.socket) -> None:
        least = self.least()
        if self._admitted[self._worker] + len(self._connecting) > least + least // SLACK_PART:
            self._rest(YIELD_SECONDS)
        else:
            self._accept(listening, ACCEPTS_PER_TURN)

    def _rest(self, seconds: float) -> None:
        for one in self.sockets:
            self._loop.remove_reader(one.fileno())
        self._resting = self._loop.call_later(seconds, self._rested)

    def _rested(self) -> None:
        self._resting = None
        for one in self.sockets:
            self._loop.add_reader(one.fileno(), self._readable, one)
            self._accept(one, 1)

    def _accept(self, listening: socket.socket, most: int) -> None:
        for _ in range(most):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in _OUT_OF_MEANS:
                    reason = (error.strerror or str(error)).lower()
                    if self._reminders.is_due("accept", reason):
                        log.error("connections cannot be accepted, and are closed: %s", reason)
                    self._turn_away(listening)
                    if self._resting is None:
                        self._rest(PAUSE_SECONDS)
                return
            accepted.setblocking(False)
            task = self._loop.create_task(self._connect(accepted))
            self._connecting.add(task)
            task.add_done_callback(self._connected)
        self._publish()

    def _turn_away(self, listening: socket.socket) -> None:
        """Accept the connections that wait with the descriptor that is kept, and close each at once."""
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None
        with suppress(OSError):  # none waits any more, or another thread took the descriptor
            for _ in range(TURNED_AWAY):
                accepted, _ = listening.accept()
                accepted.close()
                self._refused()
        with suppress(OSError):
            self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _connected(self, task: asyncio.Task[object]) -> None:
        self._connecting.discard(task)
        self._publish()

    async def _connect(self, accepted: socket.socket) -> object:
        try:
            return await self._loop.connect_accepted_socket(self._make_protocol, accepted)
        except OSError:
            accepted.close()  # the client has gone
            return None


# Accept connections on the sockets of one address, bound their number and held memory, and drain them at the end.
#
# Rules kept here:
# * Connections, in all and of one source, and the memory held for them (`mooring.server.transport.memorybudget`) are bounded, for
#   the host and, as far as open files are concerned, for each worker. File descriptors are kept for everything else.
# * A connection beyond the limits is answered with a TLS alert and counted. The log says what is used up, not for each
#   connection.
# * Every few seconds connections for which bytes wait are checked, and stalled readers are cut off.
# * A drain stops accepting, lets new connections send their first request, busy ones their next, and running requests finish,
#   waits until clients have taken the replies, then cuts the rest.

MAX_CONNECTIONS = 20_000
"""Each takes 45 to 50 kB while a watch runs on it (docs/adr/0017), together at most 1 GB. Fewer where the limit of open files is
lower."""
SPARE_FILES = 128
"""File descriptors reserved for the database, logs and files; half of all where fewer than twice as many may be open."""
FEW_CONNECTIONS = 512
"""Below this many connections the operator is told at the start that the limit of open files is low."""
FLUSH_CHECK_SECONDS = 0.01
"""Time between checks of the connections, while the server stops."""

RAISE_LIMIT = "raise it with ulimit -n, or LimitNOFILE of the unit"


def affordable_connections() -> int:
    """Return how many connections this process may hold, after raising its limit of open files as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + SPARE_FILES
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        soft = limit
    allowed = wanted if soft == resource.RLIM_INFINITY else soft
    connections = max(1, min(MAX_CONNECTIONS, allowed - min(SPARE_FILES, allowed // 2)))
    if connections < FEW_CONNECTIONS:
        log.warning("the limit of open files, %d, allows %d connections; %s", allowed, connections, RAISE_LIMIT)
    return connections


class Listener:
    """One listening address. `make_protocol()` builds the HTTP/1.1 protocol of a connection, `make_http2()` that of a client which
    negotiated HTTP/2, if the context offers it."""

    def __init__(
        self,
        context: Callable[[], SSL.Context],
        make_protocol: Callable[[], ApplicationProtocol],
        *,
        make_http2: Callable[[], ApplicationProtocol] | None = None,
        max_connections: int = MAX_CONNECTIONS,
        share: WorkerMemory = ALONE,
    ) -> None:
        self.context = context
        self._make_protocol = make_protocol
        self._make_http2 = make_http2
        self.max_connections = max_connections
        self.connections: dict[TlsProtocol, SourceNetwork] = {}
        self.refused = 0
        self._reminders = Reminders(SystemClock().monotonic)
        self.failed_handshakes = 0
        self.held_bytes = HeldBytes(share=share)
        self._share = share
        self._everywhere = None if share.alone else share.count(Counted.CONNECTIONS)
        """Connections to all workers; None while this process is alone."""
        self._most_everywhere = min(MAX_CONNECTIONS, max_connections * share.workers)
        self._behind: set[TlsProtocol] = set()
        """Connections for which bytes waited at their last write."""
        self._check_timer: asyncio.TimerHandle | None = None
        self._servers: list[asyncio.Server | SharedListener] = []
        self._shared: SharedListener | None = None
        """Set in a worker."""
        self.listens_at = ""
        """Addresses of the sockets, for a log; "" in a worker."""

    async def start(self, host: str, port: int) -> int:
        """Listen at an IP address, and return the bound port; port 0 selects a free one. Raises ListenError."""
        self.loop = asyncio.get_running_loop()
        sockets = listen(host, port)
        self.listens_at, bound = format_addresses(sockets), bound_port(sockets)
        try:
            for listening in sockets:
                self._servers.append(
                    await self.loop.create_server(lambda: TlsProtocol(self), sock=listening, backlog=BACKLOG)
                )
        except BaseException:
            self.stop_accepting()
            close_all(sockets)
            raise
        return bound

    def start_shared(self, sockets: Sequence[socket.socket]) -> int:
        """Accept from sockets that other workers share, and return their port."""
        self.loop = asyncio.get_running_loop()
        shared = SharedListener(sockets, lambda: TlsProtocol(self), self._share, self._count_unaccepted)
        shared.start()
        self._shared = shared
        self._servers.append(shared)
        return bound_port(sockets)

    def _count_unaccepted(self) -> None:
        self.refused += 1

    def protocol_for(self, tls: SSL.Connection) -> ApplicationProtocol:
        """Return a protocol of the kind that the handshake negotiated."""
        if self._make_http2 is not None and tls.get_alpn_proto_negotiated() == b"h2":
            return self._make_http2()
        return self._make_protocol()

    def admit(self, protocol: TlsProtocol) -> bool:
        """Add a connection. Return False when there are too many, in all or of its source, which may have half of them."""
        network = protocol.connection.network
        source = self.held_bytes.source(network)
        of_source = 0 if source is None else len(source.holders)
        if len(self.connections) >= self.max_connections or of_source >= max(1, self.max_connections // 2):
            self.refuse()
            return False
        admitted = self.held_bytes.admit(network, protocol)
        if self._everywhere is not None:
            if self._everywhere.total >= self._most_everywhere or admitted.everywhere > self._most_everywhere // 2:
                self.held_bytes.dismiss(admitted, protocol)
                self.refuse()
                return False
            self._everywhere.set(len(self.connections) + 1)
        self.connections[protocol] = admitted
        return True

    def refuse(self) -> None:
        """Count a connection that is refused, and say what is used up: all connections, or the part of a source."""
        self.refused += 1
        is_full = len(self.connections) >= self.max_connections or (
            self._everywhere is not None and self._everywhere.total >= self._most_everywhere
        )
        if self._reminders.is_due("refused", "full" if is_full else "source"):
            log.error(
                "connections are refused, %d so far: %s",
                self.refused,
                f"all {self.max_connections} of this process, or {self._most_everywhere} of this host, are taken; if that is the "
                f"limit of open files, {RAISE_LIMIT}"
                if is_full
                else "one address has half of them",
            )

    def dismiss(self, protocol: TlsProtocol) -> None:
        """Remove a connection that ended. Idempotent."""
        source = self.connections.pop(protocol, None)
        if source is not None:
            self.held_bytes.dismiss(source, protocol)
            self._behind.discard(protocol)
            if self._everywhere is not None:
                self._everywhere.set(len(self.connections))

    def count(self, protocol: TlsProtocol, size: int) -> None:
        """Set the bytes that a connection holds."""
        source = self.connections.get(protocol)
        if source is None or size == protocol.held:
            return
        self.held_bytes.change(source, protocol, size)
        if size:
            self._behind.add(protocol)
            if self._check_timer is None:
                self._check_timer = self.loop.call_later(CHECK_SECONDS, self._check_readers)

    def _check_readers(self) -> None:
        """Cut off stalled readers; stop checking those for which nothing waits."""
        now = self.loop.time()
        self.held_bytes.check()
        for protocol in tuple(self._behind):
            if not protocol.is_behind(now):
                self._behind.discard(protocol)
        self._check_timer = self.loop.call_later(CHECK_SECONDS, self._check_readers) if self._behind else None

    def stop_accepting(self) -> None:
        """Close the listening sockets. Idempotent."""
        while self._servers:
            self._servers.pop().close()

    async def wait_until_requested(self, seconds: float) -> None:
        """Wait until no request is under way to this server as far as it can know, at most `seconds`: it would be lost.

        New connections send their first one, and kept ones may send another until the client knows that they end.
        """
        deadline = self.loop.time() + seconds
        while self.loop.time() < deadline and self._expected():  # noqa: ASYNC110 - a connection has no event for its request
            await asyncio.sleep(FLUSH_CHECK_SECONDS)

    def _expected(self) -> bool:
        if self._shared is not None and self._shared.connecting:
            return True
        return any(protocol.expects_request for protocol in self.connections)

    async def wait_until_sent(self, seconds: float) -> None:
        """Wait until clients have been sent all replies, and have had time to read them while they were still sending, at most
        `seconds`."""
        deadline = self.loop.time() + seconds
        while self.loop.time() < deadline and self._unsent():  # noqa: ASYNC110 - transports have no event for an empty buffer
            await asyncio.sleep(FLUSH_CHECK_SECONDS)

    def _unsent(self) -> bool:
        return any(protocol.unsent or protocol.is_lingering for protocol in self.connections)

    def abort_all(self) -> None:
        """Cut the connections that are left after the drain."""
        for protocol in tuple(self.connections):
            protocol.tcp.abort()
