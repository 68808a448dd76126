"""Listening sockets of an IP address.

- Either wildcard, `0.0.0.0` or `::`, means every interface of both families, as kube-apiserver documents its `--bind-address`.
- Two sockets serve a wildcard, and not one for both families: the address of an IPv4 client stays an IPv4 address.
- A family that the host does not have is left out, as long as the other one is there.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

BACKLOG = 1024
"""Connections that the kernel may queue before they are accepted."""
WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - the flag that gives one chooses it
FREE_PORT_TRIES = 16
"""Ports that are tried until one is free in both families; a busy one is rare."""
_MISSING_FAMILY = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})
"""Errors of a host, or of a service, that has no IPv6 or no IPv4."""


class ListenError(OSError):
    """One address cannot be listened on."""

    def __init__(self, number: int, address: str, port: int) -> None:
        super().__init__(number, os.strerror(number))
        self.where = format_address(address, port)
        """`host:port`, an IPv6 address in brackets."""


def listen(address: str, port: int) -> tuple[socket.socket, ...]:
    """Return the listening sockets of an IP address; port 0 takes one that is free for all of them. Raises ListenError."""
    addresses = WILDCARDS if ipaddress.ip_address(address).is_unspecified else (address,)
    tries = 1 if port else FREE_PORT_TRIES
    while True:
        tries -= 1
        try:
            return _listen(addresses, port)
        except ListenError as error:
            if not tries or error.errno != errno.EADDRINUSE:
                raise


def bound_port(sockets: Sequence[socket.socket]) -> int:
    """Return the port of the sockets of one address."""
    return int(sockets[0].getsockname()[1])


def format_address(address: str, port: int) -> str:
    """Return `host:port`, with an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def format_addresses(sockets: Iterable[socket.socket]) -> str:
    """Return the addresses of listening sockets for a log."""
    return " and ".join(format_address(*listening.getsockname()[:2]) for listening in sockets)


def close_all(sockets: Iterable[socket.socket]) -> None:
    """Close sockets."""
    for listening in sockets:
        listening.close()


def is_of_this_machine(address: str) -> bool:
    """Return whether an IP address is one of this machine's; False where the kernel does not tell.

    The kernel binds a foreign address where ip_nonlocal_bind is set, as programs that share an address between machines need it.
    """
    family = _family(address)
    version = "ipv6" if family == socket.AF_INET6 else "ipv4"
    try:
        if Path(f"/proc/sys/net/{version}/ip_nonlocal_bind").read_text(encoding="ascii").strip() != "0":
            return False
    except OSError:
        pass  # not Linux, or without this family
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _listen(addresses: Sequence[str], port: int) -> tuple[socket.socket, ...]:
    sockets: list[socket.socket] = []
    for address in addresses:
        try:
            sockets.append(_listening_socket(address, port or (bound_port(sockets) if sockets else 0)))
        except ListenError as error:
            is_last_chance = address == addresses[-1] and not sockets
            if is_last_chance or error.errno not in _MISSING_FAMILY:
                close_all(sockets)
                raise
    return tuple(sockets)


def _listening_socket(address: str, port: int) -> socket.socket:
    family = _family(address)
    try:
        where = socket.getaddrinfo(address, port, family, socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0][4]
    except socket.gaierror as error:  # of the interface in a link-local address
        raise ListenError(errno.EADDRNOTAVAIL, address, port) from error
    try:
        listening = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ListenError(error.errno or 0, address, port) from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(where)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise ListenError(error.errno or 0, address, port) from error
    return listening


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
