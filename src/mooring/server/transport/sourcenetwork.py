"""Map a client address to its source network, under which limits count clients.

Rules kept here:
* A source is one IPv4 address, or one IPv6 /64: the smallest block that a site is given (RFC 6177), with 2^64 addresses. An
  IPv4-mapped IPv6 address (RFC 4291 2.5.5.2) counts as IPv4.
* Connections, streams, held memory and failed authentications are all counted by source.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from mooring.settings.addresses import parse_address

UNKNOWN_NETWORK = "unknown"
"""Source of all peers without an IP address, for example on a Unix socket."""
IPV6_PREFIX = 64
"""Bits of an IPv6 address that name its source."""
KEPT_ADDRESSES = 4096
"""Addresses whose result is kept, less than 2 MiB: clients connect again and again, and parsing takes 2 % of a new connection."""


@lru_cache(KEPT_ADDRESSES)
def address_of(source: str) -> str:
    """Return the address in normal form: IPv4 for an IPv4-mapped one, without zone id. Return "" for a peer without IP address."""
    return str(parse_address(source) or "")


@lru_cache(KEPT_ADDRESSES)
def network_of(address: str) -> str:
    """Return the source of an address: an IPv4 address, an IPv6 /64, or `unknown`. Zone ids are dropped."""
    ip = parse_address(address)
    if ip is None:
        return UNKNOWN_NETWORK
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    return str(ipaddress.ip_network((ip, IPV6_PREFIX), strict=False))
