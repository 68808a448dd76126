"""Sources: the network under which a client's address is counted, wherever a limit is one of a source.

Rules kept here:
* A source is one IPv4 address or one IPv6 /64, the smallest block that a site is given (RFC 6177): whoever has a /64 has 2^64
  addresses. IPv4 written as IPv6 (RFC 4291 2.5.5.2) is IPv4.
* Connections, streams, held memory and wrong credentials are all counted under this name.
"""

from __future__ import annotations

import ipaddress

UNKNOWN_NETWORK = "unknown"
"""Peers without an IP address, for example of a Unix socket, are one source."""
IPV6_PREFIX = 64


def network_of(address: str) -> str:
    """Return the source of an address: an IPv4 address, an IPv6 /64, or `unknown`. Zone ids are dropped."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return UNKNOWN_NETWORK
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((ip, IPV6_PREFIX), strict=False))
