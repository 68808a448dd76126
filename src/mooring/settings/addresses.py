"""Addresses and ranges of addresses that settings hold, and their checks, which raise ConfigError naming the key."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from mooring.errors import ConfigError

DEFAULT_PORT = 6443
MAX_HOST = 253
"""RFC 1035 2.3.4: characters of a DNS name as text."""
MAX_NETWORKS = 64
"""Networks of one list: each request is compared with all of them."""
MAX_SUFFIXES = 64
"""Suffixes of DNS names in one setting; each name of a request is compared with all of them."""
DEFAULT_SERVICE_RANGE = "10.96.0.0/12"
"""kubeadm's `--service-cidr`."""
SERVICE_PREFIXES = {4: (12, 28), 6: (64, 124)}
"""Longest and shortest range of Services by IP version: kube-apiserver takes none larger, and the tenth address is the DNS's."""
EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - machines join over the network
"""kube-apiserver's default of `--bind-address`. Like `::` it means every address of both families."""
_BROADCAST = IPv4Address("255.255.255.255")
Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"{_LABEL}(\.{_LABEL})*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One `host:port` under which clients reach the control plane."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"https://{self}"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def shown_value(text: str) -> str:
    """Return a value in quotes for an error, without one that may hold a secret: a user, a query or a fragment."""
    return '"(redacted)"' if any(mark in text for mark in "@?#") else f'"{text}"'


def names_user(url: str) -> bool:
    """Return whether a URL has a user name or a password, or may have one: `https://user:12/word@host` names the host `user`.

    A path with @ cannot be told from that, and is written with %40.
    """
    return "@" in url


def parse_endpoint(text: str, key: str, default_port: int = DEFAULT_PORT, *, is_dialled: bool = False) -> Endpoint:
    """Read `host`, `host:port`, `[v6]:port` or `v6`.

    `is_dialled`: only this machine uses the address. It may have an interface (`fe80::1%eth0`), and a name a final dot.
    """
    host, port, colon = text, "", ""
    if names_user(text):
        raise ConfigError(f"{key}: give a host and a port, without a user and a password")
    _refuse_url(text, key)
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ConfigError(f"{key}: {shown_value(text)} is not host:port; write an IPv6 address as [::1]:6443")
        colon, port = rest[:1], rest[1:]
    elif text.count(":") == 1:
        host, colon, port = text.partition(":")
    if colon and not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise ConfigError(f"{key}: the port of {shown_value(text)} is not a number from 1 to 65535")
    return Endpoint(parse_host(host, key, is_dialled=is_dialled), int(port) if port else default_port)


def _refuse_url(text: str, key: str) -> None:
    scheme, separator, rest = text.partition("://")
    if separator:
        raise ConfigError(
            f"{key}: {shown_value(text)} is a URL; leave out {scheme}://{' and what follows the port' if '/' in rest else ''}"
        )


def parse_host(text: str, key: str, *, is_dialled: bool = False) -> str:
    """Return a DNS name or IP address in its normal form."""
    _refuse_url(text, key)
    if "%" in text and not is_dialled:
        raise ConfigError(
            f"{key}: {shown_value(text)} names an interface; other machines cannot use that, give a routable address"
        )
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        pass
    name = text.lower()
    if len(name) > MAX_HOST or not _HOST.fullmatch(name.removesuffix(".") if is_dialled else name):
        raise ConfigError(f"{key}: {shown_value(text)} is neither a DNS name nor an IP address")
    return name


def parse_suffixes(texts: tuple[str, ...], key: str) -> tuple[str, ...]:
    """Return suffixes of DNS names in lower case, without a dot before them."""
    suffixes = tuple(dict.fromkeys(text.lower().removeprefix(".") for text in texts))
    for suffix in suffixes:
        if len(suffix) > MAX_HOST or not _HOST.fullmatch(suffix):
            raise ConfigError(f'{key}: "{suffix[:100]}" is not a DNS suffix, such as nodes.example.com')
    if len(suffixes) > MAX_SUFFIXES:
        raise ConfigError(f"{key}: more than {MAX_SUFFIXES} suffixes")
    return suffixes


def unpublishable(host: str) -> str:
    """Return the reason for which a host is not the address of one machine, "" when it may be.

    Programs read a name that ends in a number as an IPv4 address, `0` as 0.0.0.0 (WHATWG URL, "ends in a number"; inet_aton).
    """
    address = parse_address(host)
    if address is None:
        last = host.rpartition(".")[2]
        is_number = last.isdigit() or re.fullmatch(r"0x[0-9a-f]*", last) is not None
        return "ends in a number; give a DNS name, or an IP address with its four numbers" if is_number else ""
    if address.is_unspecified or address.is_multicast or address == _BROADCAST:
        return "means something else on each machine; give an address of this one that others reach"
    return ""


def parse_hosts(texts: tuple[str, ...], key: str) -> tuple[str, ...]:
    """Return DNS names and IP addresses in their normal form."""
    return tuple(parse_host(text, key) for text in texts)


def parse_bind_address(text: str, key: str) -> str:
    """Return an IP address to listen on, IPv4 for an IPv4-mapped one; the empty text means every address."""
    try:
        address = ipaddress.ip_address(text or EVERY_ADDRESS)
    except ValueError:
        raise ConfigError(
            f"{key}: {shown_value(text)} is not an IP address; 0.0.0.0 or :: means every address of both families"
        ) from None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    address = mapped or address
    if address.is_multicast or address == _BROADCAST:
        raise ConfigError(
            f"{key}: {shown_value(text)} is not the address of one machine; 0.0.0.0 or :: means every address of both families"
        )
    return str(address)


def parse_service_range(text: str, key: str) -> Network:
    """Return the range that Services get their addresses from."""
    if "," in text:
        raise ConfigError(
            f"{key}: {shown_value(text)} is more than one range; Services here have addresses of one family"
        )
    try:
        found = ipaddress.ip_network(text, strict=False) if "/" in text else None
    except ValueError:
        found = None
    if found is None:
        raise ConfigError(
            f"{key}: {shown_value(text)} is not a range of addresses; write it like {DEFAULT_SERVICE_RANGE}"
        )
    longest, shortest = SERVICE_PREFIXES[found.version]
    if not longest <= found.prefixlen <= shortest:
        raise ConfigError(f'{key}: {shown_value(text)} is too {"large" if found.prefixlen < longest else "small"}; '
                          f"for IPv{found.version}, give a prefix length from {longest} to {shortest}")  # fmt: skip
    return found


def parse_network(text: str, key: str) -> Network:
    """Return a network, without bits set beyond its prefix. IPv4 is written as IPv4. The error does not repeat the text."""
    try:
        network: Network | None = ipaddress.ip_network(text.strip())
    except ValueError:
        network = None
    if network is None or "/" not in text or "%" in text:
        raise ConfigError(
            f"{key}: one of the networks is not a network such as 10.1.0.0/16 or fd00:1::/64, with no bits set beyond the prefix"
            + _meant(text.strip())
        )
    # Addresses of clients are compared as IPv4, so that such a network would hold none of them.
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None:
        raise ConfigError(f"{key}: write an IPv4 network as IPv4, not within ::ffff:0:0/96")
    return network


def _meant(text: str) -> str:
    """Return the end of an error that names the network of an address with a prefix; "" for another text."""
    try:
        return f"; {ipaddress.ip_network(text, strict=False)} is meant" if "/" in text and "%" not in text else ""
    except ValueError:
        return ""


def parse_networks(texts: tuple[str, ...], key: str) -> tuple[Network, ...]:
    """Return networks, at most MAX_NETWORKS."""
    if len(texts) > MAX_NETWORKS:
        raise ConfigError(f"{key}: more than {MAX_NETWORKS} networks")
    return tuple(parse_network(text, key) for text in texts)


def is_in(source: str, networks: tuple[Network, ...]) -> bool:
    """Return True when the address of a client is in one of the networks, or none is named. An unknown address is in none."""
    if not networks:
        return True
    address = parse_address(source)
    return address is not None and any(address in network for network in networks)


def parse_address(text: str) -> Address | None:
    """Return the address of a client, IPv4 for an IPv4-mapped one; None when `text` is none."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
