"""Addresses of this machine, as the kernel chooses them. Nothing is sent.

Rules kept here: a temporary IPv6 address (RFC 8981) is preferred for a day and gone after a week, so that it is not one by which
others reach this machine later. Another address of the interface is taken where there is one.
"""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress

_IPV6_ADDR_PREFERENCES = 72
_IPV6_PREFER_SRC_PUBLIC = 2
"""Constants of linux/in6.h (RFC 5014); the module socket does not have them."""

_DOCUMENTATION_ADDRESSES = ("192.0.2.1", "2001:db8::1")
"""Addresses for documentation (RFC 5737, RFC 3849). The kernel chooses a route for them, and no packet is sent."""
_DISCARD = 9
"""Port of the discard protocol."""


def source_address(host: str, port: int) -> str:
    """Return the source address of connections to a host; "" without a route, or for a name that does not resolve."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            if family == socket.AF_INET6:
                with suppress(OSError):  # not Linux
                    probe.setsockopt(socket.IPPROTO_IPV6, _IPV6_ADDR_PREFERENCES, _IPV6_PREFER_SRC_PUBLIC)
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError):
        return ""


def detected_addresses() -> tuple[str, ...]:
    """Return the addresses of the interfaces of the default routes, IPv4 first, as kubeadm orders them. Sends no packet.

    An IPv6 address that is temporary (RFC 8981) or link-local is not one that others reach later.
    """
    found = []
    for address in _DOCUMENTATION_ADDRESSES:
        text = source_address(address, _DISCARD)
        if not text:
            continue  # no route
        source = ipaddress.ip_address(text)
        is_link_local = source.version == 6 and source.is_link_local
        # the kernel chooses ::1 before the interface has an address that it may use
        if not is_link_local and not source.is_loopback:
            found.append(str(source))
    return tuple(found)
