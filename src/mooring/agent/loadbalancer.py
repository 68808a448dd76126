"""TCP proxy on the loopback interface that passes the connections of this machine to a server that answers.

Rules kept here (docs/protocol/k3s.md#load-balancer-of-an-agent):
* TLS passes through unread: clients verify the server, and the proxy holds no key. `mooring.trust.serverlist` decides which
  server is tried, and which connections are closed.
* Health is checked every second. A server that sent something since the last check is healthy. Another one that has connections,
  or that failed, must accept a TCP connection.
* No connection is continued to this load balancer itself, whatever name leads to it.
* Servers are connected directly. k3s's way a proxy of the environment is used where it is allowed.
* With a file, the learned list is saved atomically after each change. A list that is damaged, or of another `--server`, is
  replaced.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import socket
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from mooring.agent import tunnel
from mooring.agent.steps import with_deadline
from mooring.agent.tunnel import Connection, Dialogue, Probe, Side
from mooring.client.files import make_directory, read_limited, write_atomic
from mooring.client.http.connection import Proxies, no_proxies
from mooring.clock import Clock
from mooring.errors import ConfigError
from mooring.settings.addresses import Endpoint, parse_endpoint
from mooring.trust.httpproxy import ProxySettingError
from mooring.trust.httpsurl import tls_name, url_of
from mooring.trust.serverlist import ALL_FAILED, UNSPECIFIED, ServerList, ServerListChange, new_list

log = logging.getLogger("mooring.agent")

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 6444
"""k3s's `--lb-server-port`."""
CHECK_SECONDS = 1.0
"""Seconds between two checks of the servers, as in k3s."""
PROBE_SECONDS = 3.0
"""Seconds for the TCP connection of a check: a SYN that was lost is repeated after one second."""
DIAL_SECONDS = 5.0
"""Seconds for a connection to one server. Clients wait 10 s (docs/protocol/k3s.md#requests-of-an-agent), enough for a second."""
FAMILY_SECONDS = 0.25
"""Seconds before the next address of a name is tried beside the first (RFC 8305 section 8)."""
SILENT_SECONDS = 3.0
"""Seconds after which a client may expect the first byte. A busy server answers a TLS handshake in a fraction of that."""
HALF_CLOSED_SECONDS = 60.0
"""Seconds without a byte after which a connection ends that one side has finished. Clients of a cluster end both at once."""
MAX_CONNECTIONS = 256
"""A kubelet, a proxy and an agent hold about a dozen. Each takes two of the 1024 file descriptors that a process may open."""
FULL_SECONDS = 60.0
"""Seconds between two warnings about too many connections."""
MAX_STATE = 1 << 16
"""Octets of the saved list: 64 addresses take 17 KiB."""


class LoadBalancer:
    """Proxy on 127.0.0.1 in front of the servers of a cluster."""

    def __init__(
        self,
        listen_port: int,
        urls: Sequence[str],
        clock: Clock,
        state_file: Path | None = None,
        entropy: bytes | None = None,
        port_flag: str = "--load-balancer-port",
        proxies: Proxies = no_proxies,
    ) -> None:
        """`urls` are the seeds. `listen_port` 0 is a free port. Raises ConfigError for a URL that is none, or a proxy for it that
        cannot be used.

        `port_flag` is the flag of the port, for messages.
        """
        self._servers = new_list(urls, secrets.token_bytes(16) if entropy is None else entropy)
        self._proxies = proxies
        for proxy in filter(None, map(proxies, urls)):
            tunnel.check_proxy(proxy)
        self._port = listen_port
        self._port_flag = port_flag
        self._state_file = state_file
        self._clock = clock
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._report_full_after = 0.0
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._connections: dict[Connection, None] = {}
        self._reported_all_failed = False

    @property
    def address(self) -> str:
        """Host and port to connect to."""
        return f"{LOOPBACK}:{self._port}"

    @property
    def url(self) -> str:
        return f"https://{self.address}"

    @property
    def servers(self) -> ServerList:
        return self._servers

    @property
    def open_connections(self) -> tuple[Connection, ...]:
        return tuple(self._connections)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Restore the learned list and listen. Raises ConfigError when the port is not free."""
        loop = asyncio.get_running_loop()
        try:
            listener = await loop.create_server(
                lambda: Connection(self._accepted, self._unanswered, self._ended).client_side(), LOOPBACK, self._port
            )
        except OSError as error:
            raise ConfigError(self._listen_problem(error)) from error
        self._listener = listener
        self._port = listener.sockets[0].getsockname()[1]
        # The port is known only now, where a free one was asked for.
        if self.address in self._servers.seeds:
            await self.stop()
            raise ConfigError(
                f"{self.address} is this machine's own load balancer: give the address of a server, or another {self._port_flag}"
            )
        # After the port is known: the saved list must not have this load balancer among the servers.
        self._restore()
        self._spawn(self._check())

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        if self._listener is not None:
            self._listener.close()
        tasks = [*self._tasks, *self._probes.values()]
        for task in tasks:
            task.cancel()
        for connection in [*self._connections]:
            connection.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            await self._listener.wait_closed()
            self._listener = None

    def update(self, addresses: Sequence[str]) -> None:
        """Learn the servers of the cluster, and save them. An empty list changes nothing."""
        change = self._servers.with_learned(addresses, self.address)
        if change.servers == self._servers:
            return
        log.info("load balancer: the servers are %s", ", ".join(change.servers.known))
        self._apply(change)
        self._save()

    def _listen_problem(self, error: OSError) -> str:
        if error.errno == errno.EADDRINUSE:
            reason = "another program listens there; stop it"
        else:
            reason = (error.strerror or str(error)).lower()
        return f"the load balancer cannot listen on {self.address}: {reason}, or choose another port with {self._port_flag}"

    # ── the saved list ───────────────────────────────────────────────────────────────────────────────────────────

    def _restore(self) -> None:
        if self._state_file is None:
            return
        restored = None
        if os.path.lexists(self._state_file):
            try:
                restored = self._servers.restored(read_limited(self._state_file, MAX_STATE), self.address)
            except ConfigError as error:
                log.warning("load balancer: the saved list of servers does not count: %s", error)
        if restored is None:
            self._save()
        else:
            self._servers = restored

    def _save(self) -> None:
        if self._state_file is None:
            return
        try:
            make_directory(self._state_file.parent)
            write_atomic(self._state_file, self._servers.encode())
        except ConfigError as error:
            log.warning("load balancer: the list of servers is not saved: %s", error)

    # ── health ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _check(self) -> None:
        while True:
            await self._clock.sleep(CHECK_SECONDS)
            self._sweep()

    def _sweep(self) -> None:
        """Check each server that needs it, and close connections that one side ended long ago."""
        now = self._clock.monotonic()
        heard, in_use = set(), set()
        for connection in [*self._connections]:
            in_use.add(connection.server)
            if connection.take_heard(now):
                heard.add(connection.server)
            if connection.is_half_closed and now - connection.idle_since(now) >= HALF_CLOSED_SECONDS:
                connection.abort()
        known = self._servers.known
        # With one server there is no other to go to.
        if len(known) < 2:
            return
        for address in known:
            if address in heard:
                self._apply(self._servers.checked({address: True}))
            elif address in in_use or address in self._servers.failed:
                self._probe(address)

    def _probe(self, address: str) -> None:
        if address in self._probes:
            return

        async def probe() -> None:
            try:
                failure = await self._dial(address, Probe(), PROBE_SECONDS)
                self._apply(self._servers.checked({address: not failure}))
            finally:
                del self._probes[address]

        self._probes[address] = asyncio.create_task(probe())

    def _apply(self, change: ServerListChange) -> None:
        self._set(change.servers)
        for connection in [*self._connections]:
            if connection.server in change.closing:
                connection.abort()

    def _set(self, servers: ServerList) -> None:
        before, self._servers = self._servers.failed, servers
        for address in sorted(servers.failed - before):
            log.warning("load balancer: server %s does not answer", address)
        for address in sorted((before - servers.failed) & {*servers.known}):
            log.info("load balancer: server %s answers again", address)

    # ── connections ──────────────────────────────────────────────────────────────────────────────────────────────

    def _accepted(self, connection: Connection) -> None:
        now = self._clock.monotonic()
        if len(self._connections) >= MAX_CONNECTIONS:
            # The connection that was idle longest is closed, so that no program of this machine keeps the others out.
            self._report_full(now)
            min(self._connections, key=lambda one: one.idle_since(now)).abort()
        connection.begin(now)
        self._connections[connection] = None
        # asyncio starts to read after `connection_made`. CPython 3.11.2, which Debian 12 has, does so although reading was paused
        # there, and what is read before the server is connected is lost. So the pause comes behind that start.
        asyncio.get_running_loop().call_soon(connection.pause_client)
        self._spawn(self._connect(connection))

    def _report_full(self, now: float) -> None:
        """Warn about too many connections, once a minute: any program of this machine may open more."""
        if now >= self._report_full_after:
            self._report_full_after = now + FULL_SECONDS
            log.warning("load balancer: there are %d connections; the one idle longest is closed", MAX_CONNECTIONS)

    def _unanswered(self, connection: Connection) -> None:
        # The kernel accepts connections for a process that hangs. A client that gave up without one byte shows it.
        if self._clock.monotonic() - connection.opened >= SILENT_SECONDS:
            self._set(self._servers.dropped(connection.server))
            connection.abort()

    def _ended(self, connection: Connection) -> None:
        self._connections.pop(connection, None)

    async def _connect(self, connection: Connection) -> None:
        """Continue `connection` to a server, or end it."""
        tried: dict[str, str] = {}
        while connection.dialogue is not Dialogue.ENDED:
            address = next((one for one in self._servers.candidates() if one not in tried), "")
            if not address:
                self._report_all_failed(tried)
                connection.abort()
                return
            tried[address] = await self._dial(address, connection.server_side(address), DIAL_SECONDS)
            if not tried[address]:
                # The client may have gone since, and then `_unanswered` has judged the server already.
                if connection in self._connections:
                    self._set(self._servers.connected(address))
                self._reported_all_failed = False
                return
            self._set(self._servers.dropped(address))

    def _report_all_failed(self, tried: Mapping[str, str]) -> None:
        """Log which server failed and why: its clients see the end of a connection to this load balancer alone."""
        if not self._reported_all_failed:
            self._reported_all_failed = True
            failures = (f"{address} ({reason})" for address, reason in sorted(tried.items()))
            log.error("load balancer: %s: %s", ALL_FAILED, ", ".join(failures) or "none is known yet")

    async def _dial(self, address: str, protocol: Side | Probe, seconds: float) -> str:
        """Connect `protocol` to `address`. Return why no connection came about within `seconds`; "" for one that did."""
        try:
            await with_deadline(
                self._clock, seconds, self._connect_protocol(parse_endpoint(address, "", is_dialled=True), protocol)
            )
        except ProxySettingError as error:
            return str(error)
        except OSError as error:
            return _failure(error, seconds)
        return ""

    async def _connect_protocol(self, endpoint: Endpoint, protocol: Side | Probe) -> None:
        """Connect `protocol`. Raises OSError, also where the connection would come back here."""
        loop = asyncio.get_running_loop()
        host, port = endpoint.host, endpoint.port
        proxy = self._proxies(url_of(str(endpoint)))
        if proxy is not None:
            await tunnel.connect(proxy, str(Endpoint(tls_name(host) if ":" in host else host, port)), protocol)
            return
        # A name may lead to this load balancer: the connection would come back here, again and again.
        if port == self._port:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            if any(str(address[0]).removeprefix("::ffff:") in (LOOPBACK, *UNSPECIFIED) for *_, address in found):
                raise ConnectionRefusedError(errno.ECONNREFUSED, f"{host} is this load balancer")
        await loop.create_connection(lambda: protocol, host, port, happy_eyeballs_delay=FAMILY_SECONDS)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _failure(error: OSError, seconds: float) -> str:
    """Return why a connection failed: the name, the time, the proxy, or the reason of the system for each address."""
    if isinstance(error, tunnel.TunnelError):
        return str(error)
    if isinstance(error, socket.gaierror):
        return f"the name does not resolve: {error.strerror}"
    if isinstance(error, TimeoutError) and error.errno is None:
        return f"no connection within {seconds:g} s"
    return os.strerror(error.errno).lower() if error.errno else str(error)
