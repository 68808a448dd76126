"""Address of this machine towards another one, as the kernel chooses it. Nothing is sent.

Rules kept here: a temporary IPv6 address (RFC 8981) is preferred for a day and gone after a week, so that it is not one by which
others reach this machine later. Another address of the interface is taken where there is one.
"""

from __future__ import annotations

import socket
from contextlib import suppress

_IPV6_ADDR_PREFERENCES = 72
_IPV6_PREFER_SRC_PUBLIC = 2
"""Constants of linux/in6.h (RFC 5014); the module socket does not have them."""


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
