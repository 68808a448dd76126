"""Listening sockets of a server with workers, bound once by the parent and inherited by every worker.

Rules kept here:
* A connection waits in a queue that belongs to all workers. One that a worker did not accept is accepted by another, so that
  the end of a worker loses none.
* As with asyncio's `create_server`: every address of the host is bound, and IPv6 sockets take IPv6 only.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from types import MappingProxyType

from mooring.errors import ConfigError
from mooring.server.transport.listener import BACKLOG
from mooring.settings.network import NetworkSettings


def listen(host: str, port: int) -> tuple[socket.socket, ...]:
    """Return a listening socket for each address of `host`; port 0 selects a free one, the same for all. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            sockets.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            where = (address[0], address[1] or bound_port(sockets), *address[2:])
            one.bind(where)
            one.listen(BACKLOG)
            one.setblocking(False)
    except BaseException:
        for one in sockets:
            one.close()
        raise
    return tuple(sockets)


def bound_port(sockets: list[socket.socket] | tuple[socket.socket, ...]) -> int:
    """Return the port of the first socket; 0 while it has none."""
    return int(sockets[0].getsockname()[1])


_REMEDIES: Mapping[int, str] = MappingProxyType(
    {
        errno.EADDRINUSE: "stop what uses the port or choose another with --secure-port",
        errno.EADDRNOTAVAIL: "give an address of this machine with --bind-address",
        errno.EACCES: "a port below 1024 needs the capability CAP_NET_BIND_SERVICE: choose another with --secure-port, or grant it "
        "(AmbientCapabilities= in the systemd unit)",
    }
)


def cannot_listen(network: NetworkSettings, error: OSError) -> ConfigError:
    """Return the error of an operator for an address that cannot be bound."""
    reason = os.strerror(error.errno).lower() if error.errno else str(error)  # asyncio's text repeats the address
    remedy = _REMEDIES.get(error.errno or 0, "check --bind-address and --secure-port")
    return ConfigError(f"cannot listen on {network.bind_address}:{network.secure_port}: {reason}; {remedy}")
