"""Servers of an agent's load balancer: the order in which they are tried, their health, and the form of their file.

Rules kept here (docs/protocol/k3s.md#load-balancer-of-an-agent):
* Seeds are the addresses that a join was given. The learned list is what a server of the cluster named. While nothing is learned,
  the seeds are the list.
* The learned servers are shuffled by given entropy, so that the agents of a cluster spread over its servers. One server is in use
  until a connection to it fails. A seed that is not in the learned list is the last resort: it is tried after all healthy
  servers, and loses its connections as soon as a learned server is healthy again.
* A server that a check finds unhealthy, or that leaves the list, loses its connections.
* The saved form is `{"ServerURL": …, "ServerAddresses": […]}`. It counts only for the URL that it names. A damaged one does not
  count. An address says where a server may be; the TLS of each connection says whether it is one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from mooring.errors import ConfigError
from mooring.settings.addresses import parse_endpoint
from mooring.trust.bootstraptoken.token import ends_in_token
from mooring.trust.httpsurl import dialled_host, https_url_problem, url_of

MAX_SERVERS = 64
"""More servers than any cluster has. Each may be tried for one connection."""
HTTPS_PORT = 443
"""Port of a URL that names none (RFC 9110 section 4.2.2), as in k3s."""
UNSPECIFIED = ("0.0.0.0", "::")  # noqa: S104 - nothing is bound: they are refused
"""Addresses that name no machine; a connection to one would reach this machine itself."""
ALL_FAILED = "all servers failed"


@dataclass(frozen=True, slots=True)
class ServerList:
    """The servers of one load balancer. Methods return a changed list."""

    url: str
    """First URL of the seeds, for which a saved list counts; empty without seeds."""
    seeds: tuple[str, ...]
    learned: tuple[str, ...]
    """Sorted."""
    entropy: bytes
    in_use: str = ""
    """Server of the last connection that succeeded. "" before the first."""
    failed: frozenset[str] = frozenset()

    @property
    def fallback(self) -> tuple[str, ...]:
        """The seeds that the learned list does not have."""
        return tuple(one for one in self.seeds if one not in self.learned)

    @property
    def known(self) -> tuple[str, ...]:
        """All servers: the learned ones in their shuffled order, then the fallback."""
        return (*sorted(self.learned, key=self._rank), *self.fallback)

    def candidates(self) -> tuple[str, ...]:
        """Return the servers in the order in which a connection tries them: healthy ones first, the one in use before others."""
        fallback = self.fallback
        return tuple(sorted(self.known, key=lambda one: (one in self.failed, one in fallback, one != self.in_use)))

    def connected(self, address: str) -> ServerList:
        """Return the list after a connection to `address` succeeded."""
        return replace(self, in_use=address, failed=self.failed - {address})

    def dropped(self, address: str) -> ServerList:
        """Return the list after a connection to `address` failed."""
        return replace(self, failed=self.failed | ({address} & {*self.known}))

    def checked(self, healthy: Mapping[str, bool]) -> ServerListChange:
        """Return the list after a check of the servers in `healthy`, and the servers whose connections are to be closed."""
        known = {*self.known}
        down = {one for one, is_healthy in healthy.items() if not is_healthy} & known
        up = {one for one, is_healthy in healthy.items() if is_healthy}
        after = replace(self, failed=(self.failed | down) - up)
        closing = set(down)
        if any(one not in after.failed for one in self.learned):
            closing |= {*self.fallback}
        return ServerListChange(after, frozenset(closing))

    def with_learned(self, addresses: Iterable[str], own_address: str = "") -> ServerListChange:
        """Return the list with `addresses` learned, and the servers whose connections are to be closed.

        Addresses that are none, and `own_address` of the load balancer, are passed over. When nothing is left, the list stays.
        """
        learned = valid_addresses(addresses, own_address)
        if not learned or learned == self.learned:
            return ServerListChange(self, frozenset())
        after = replace(self, learned=learned)
        return ServerListChange(
            replace(after, failed=self.failed & {*after.known}), frozenset({*self.learned} - {*learned})
        )

    def encode(self) -> bytes:
        """Return the saved form."""
        return json.dumps({"ServerURL": self.url, "ServerAddresses": self.learned}, indent=2).encode() + b"\n"

    def restored(self, data: bytes, own_address: str = "") -> ServerList | None:
        """Return the list with the learned servers of a saved form; None when it is damaged or of another URL."""
        url, addresses = _saved(data)
        return self.with_learned(addresses, own_address).servers if addresses is not None and url == self.url else None

    def _rank(self, address: str) -> bytes:
        """Return where `address` stands in the shuffled order; a server that comes or goes moves no other."""
        return hashlib.sha256(self.entropy + address.encode()).digest()


@dataclass(frozen=True, slots=True)
class ServerListChange:
    """A changed list, and the servers whose open connections are to be closed."""

    servers: ServerList
    closing: frozenset[str]


def saved_urls(data: bytes) -> tuple[str, ...]:
    """Return the URLs of the servers in a saved form, the learned ones first; none when it is damaged."""
    url, addresses = _saved(data)
    if not isinstance(url, str) or addresses is None:
        return ()
    learned = (url_of(one) for one in valid_addresses(addresses))
    return tuple(dict.fromkeys((*learned, *((url,) if not https_url_problem(url) else ()))))


def _saved(data: bytes) -> tuple[object, list[str] | None]:
    """Return the URL and the addresses of a saved form; no addresses when it is damaged."""
    try:
        saved = json.loads(data)
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(saved, dict):
        return None, None
    addresses = saved.get("ServerAddresses")
    # k3s writes null for a list that was never filled.
    addresses = [] if addresses is None else addresses
    if not isinstance(addresses, list) or not all(isinstance(one, str) for one in addresses):
        return None, None
    return saved.get("ServerURL"), addresses


def new_list(urls: Sequence[str], entropy: bytes) -> ServerList:
    """Return the list of a load balancer that has learned nothing. Raises ConfigError for a URL that is none."""
    if len(urls) > MAX_SERVERS:
        raise ConfigError(f"--server: give the URLs of at most {MAX_SERVERS} servers")
    seeds = tuple(dict.fromkeys(seed_address(url) for url in urls))
    return ServerList(urls[0] if urls else "", seeds, tuple(sorted(seeds)), entropy)


def seed_address(url: str) -> str:
    """Return host and port of the URL of a server. Raises ConfigError."""
    if problem := https_url_problem(url):
        raise ConfigError(f"--server: {problem}; write it like https://10.0.0.1:6443")
    if ends_in_token(url):
        raise ConfigError("--server: a bootstrap token stands where the address is expected: give it with --token")
    parts = urlsplit(url)
    port = HTTPS_PORT if parts.port is None else parts.port
    return str(parse_endpoint(f"[{dialled_host(parts)}]:{port}", "--server", is_dialled=True))


def valid_addresses(texts: Iterable[str], own_address: str = "") -> tuple[str, ...]:
    """Return those of `texts` that are an address with a port, in their normal form, sorted."""
    found: set[str] = set()
    for text in texts:
        if len(found) == MAX_SERVERS:
            break
        try:
            endpoint = parse_endpoint(text, "", 0, is_dialled=True)
        except ConfigError:
            continue
        if endpoint.port and endpoint.host not in UNSPECIFIED and str(endpoint) != own_address:
            found.add(str(endpoint))
    return tuple(sorted(found))
