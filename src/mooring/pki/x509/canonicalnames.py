"""Canonical forms of DNS names and IP addresses, in which certificates, Nodes and servers are compared.

Rules kept here:
* Two names are the same when any verifier takes one for the other. Go, OpenSSL and Python compare DNS names without regard to case,
  and Go's `net.IP.Equal` takes an IPv4 address and its IPv4-mapped form for the same.
* An IPv4-mapped address is the IPv4 address. Every other form of IPv6 that embeds an IPv4 address is refused in certificates: one
  host or router may take it for the IPv4 address, and another may not.
* A DNS name has letters, digits and hyphens in labels that are not empty. NUL, a trailing dot, and a name that a resolver or a
  client may read as an IP address are refused.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TypeAlias

IPAddress: TypeAlias = IPv4Address | IPv6Address
Name: TypeAlias = str | IPAddress
"""A DNS name in lower case, or an IP address that is not IPv4-mapped."""

MAX_NAME = 253
"""RFC 1035 2.3.4: characters of a DNS name as text."""

_LDH_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_LDH_NAME = re.compile(rf"{_LDH_LABEL}(?:\.{_LDH_LABEL})*", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
"""Last label of a name that `inet_aton`, and URLs of browsers, read as an IPv4 address, such as 127.1 or 0x7f000001."""
_EMBEDDING = tuple(
    (IPv6Network(network), what)
    for network, what in (
        ("::/96", "IPv4-compatible"),
        ("::ffff:0:0:0/96", "IPv4-translated"),
        ("64:ff9b::/96", "NAT64"),
        ("64:ff9b:1::/48", "NAT64"),
        ("2001::/32", "Teredo"),
        ("2002::/16", "6to4"),
    )
)
_ISATAP = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")
_LOOPBACK_V6 = IPv6Address("::1")
_THIS_NETWORK = 0
_BROADCAST = IPv4Address("255.255.255.255")


def canonical_address(address: IPAddress) -> IPAddress:
    """Return the IPv4 address of an IPv4-mapped one, and every other address as it is."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def canonical(text: str) -> Name:
    """Return a name or address, as a Node or a setting has it, in the form in which owners are compared."""
    try:
        return canonical_address(ip_address(text))
    except ValueError:
        return text.lower().rstrip(".")


def address_fault(address: IPAddress) -> str:
    """Return why a certificate may not have this canonical address, "" when it may."""
    if isinstance(address, IPv4Address):
        if address.packed[0] == _THIS_NETWORK or address.is_multicast or address == _BROADCAST:
            return "is not the address of a machine"
        return ""
    if address.is_unspecified or address.is_multicast:
        return "is not the address of a machine"
    if address.scope_id:
        return "has a zone, which means something on one machine only"
    if address == _LOOPBACK_V6:
        return ""
    kind = next((what for network, what in _EMBEDDING if address in network), "")
    if address.packed[8:12] in _ISATAP:
        kind = "ISATAP"
    return f"embeds an IPv4 address ({kind}), so that verifiers disagree about it" if kind else ""


def name_fault(text: str) -> str:
    """Return why a certificate may not have this DNS name, "" when it may. A wildcard is not a name."""
    name = text.lower()
    if len(name) > MAX_NAME or not text.isascii() or not _LDH_NAME.fullmatch(name):
        return "is not a DNS name: labels of letters, digits and hyphens, joined by single dots"
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        return "can be read as an IP address, and is not a DNS name"
    return ""
