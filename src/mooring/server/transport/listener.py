"""Accept connections on the sockets of one address, bound their number and held memory, and drain them at the end.

Rules kept here:
* Connections, in all and of one source, and the memory held for them (`mooring.server.transport.heldbytes`) are bounded, for the
  host and, as far as open files are concerned, for each worker. File descriptors are kept for everything else.
* A connection beyond the limits is answered with a TLS alert and counted. The log says what is used up, not for each connection.
* Every few seconds connections for which bytes wait are checked, and stalled readers are cut off.
* A drain stops accepting, lets new connections send their first request, busy ones their next, and running requests finish, waits
  until clients have taken the replies, then cuts the rest.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable, Sequence

from OpenSSL import SSL

from mooring.clock import SystemClock
from mooring.listensockets import BACKLOG, bound_port, close_all, format_addresses, listen
from mooring.reminders import Reminders
from mooring.server.hostshare.share import ALONE, Counted, HostShare
from mooring.server.transport.heldbytes import HeldBytes, SourceNetwork
from mooring.server.transport.progress import CHECK_SECONDS
from mooring.server.transport.sharedlistener import SharedListener
from mooring.server.transport.tlsconnection import ApplicationProtocol, TlsProtocol

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

log = logging.getLogger("mooring.server")


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
        share: HostShare = ALONE,
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
