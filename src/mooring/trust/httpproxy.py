"""Proxies of the environment, by the rule of Go's `golang.org/x/net/http/httpproxy`, which kubectl, kubeadm and kubelet use.

Rules kept here (docs/protocol/discovery-and-join.md#proxies):
* HTTPS_PROXY is for https URLs, HTTP_PROXY for http URLs. A variable in upper case wins over the same one in lower case, and an
  empty one does not count. HTTP_PROXY is refused beside REQUEST_METHOD, because a client of a CGI program can set it.
* A proxy is a URL with the scheme http, https or socks5, or `host:port`, which means http.
* The name `localhost` and loopback addresses never use a proxy.
* NO_PROXY is a list with commas: `*` for every host; a range; an IP address; `domain` for a name and the names below it;
  `.domain` and `*.domain` for the names below it. An address and a domain may have a port: `192.0.2.1:6443`, `[fd00::1]:6443`.
* No name is resolved: a range matches addresses in URLs.
* A proxy that cannot be used is an error that names the variable. Go ignores it and connects without proxy.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import SplitResult, unquote, urlsplit

from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.settings.addresses import names_user
from mooring.trust.answertext import after_colon, answer_text
from mooring.trust.httpsurl import dialled_host

SCHEMES = ("http", "https", "socks5")
K3S_ALLOWED = "K3S_AGENT_HTTP_PROXY_ALLOWED"
"""Variable that lets an agent of k3s use the proxies of the environment for its servers."""
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
"""Go's `strconv.ParseBool`."""
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
MAX_REFUSAL = 200
"""Characters of the status line of a proxy that are shown."""
_PORTS = {"http": 80, "https": 443}
_VARIABLES = {"https": ("HTTPS_PROXY", "https_proxy"), "http": ("HTTP_PROXY", "http_proxy")}
_EXCEPTIONS = ("NO_PROXY", "no_proxy")
_MAPPED_BITS = 96
"""Bits before the IPv4 address in an IPv4-mapped IPv6 address (RFC 4291 2.5.5.2)."""

Address = IPv4Address | IPv6Address


class ProxySettingError(ConfigError):
    """A proxy that is set and cannot be used. The message names the setting, never its value, which may hold a password."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy, and the variable or the field that names it."""

    url: str = field(repr=False)
    """With user name and password, where it has them."""
    source: str

    @property
    def shown_url(self) -> str:
        """The URL without user name and password."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def refusal(self, said: str) -> str:
        """Return the error for a refusal: the proxy, and what it says in its status line, without the credential that it got."""
        parts = urlsplit(self.url)
        user, password = parts.username or "", parts.password or ""
        # A user name without a password is a token.
        secret = password or user
        basic = b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
        forms = (secret, unquote(secret), basic) if secret else ()
        text = answer_text(said.encode("utf-8", "replace"), map(Secret, forms))
        return f"{self} refuses{after_colon(text[:MAX_REFUSAL])}"

    def __str__(self) -> str:
        return f"the proxy {self.shown_url} (from {self.source})"


def named_proxy(text: str, source: str) -> Proxy:
    """Return the proxy that a kubeconfig names. Raises ProxySettingError."""
    if reason := proxy_url_problem(text):
        raise ProxySettingError(f"{source}: {reason}")
    return Proxy(text, source)


def proxy_url_problem(text: str) -> str:
    """Return the reason why `text` is not the URL of a proxy, without a part of it; "" when it is one."""
    if not text.isprintable() or " " in text:
        return "it has a blank or a control character"
    not_url = "it is not a URL; in a user name and a password, special characters are written as %40"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return not_url
    if names_user(parts.path + parts.query + parts.fragment) or _BAD_ESCAPE.search(parts.netloc):
        return not_url
    if parts.scheme not in SCHEMES or not parts.netloc:
        return f"it is not an {SCHEMES[0]}, {SCHEMES[1]} or {SCHEMES[2]} URL"
    return "" if parts.hostname and port != 0 else "it has no host, or the port 0"


def environment_proxy(url: str, environ: Mapping[str, str]) -> Proxy | None:
    """Return the proxy for a request to `url`; None without one. Raises ProxySettingError."""
    parts = urlsplit(url)
    source, text = _first(environ, _VARIABLES.get(parts.scheme, ()))
    if not text or not _uses_proxy(parts, _first(environ, _EXCEPTIONS)[1]):
        return None
    # As Go refuses it: the header `Proxy` of a client becomes HTTP_PROXY of a CGI program.
    if parts.scheme == "http" and environ.get("REQUEST_METHOD"):
        raise ProxySettingError(f"{source} is not used beside REQUEST_METHOD: a client of a CGI program can set it")
    return named_proxy(text if "://" in text else f"http://{text}", source)


def k3s_proxy(url: str, environ: Mapping[str, str]) -> Proxy | None:
    """Return the proxy for a request to a server of k3s's way: none unless K3S_ALLOWED says so. Raises ProxySettingError."""
    return environment_proxy(url, environ) if environ.get(K3S_ALLOWED, "") in _TRUE else None


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str]:
    return next(((name, environ[name]) for name in names if environ.get(name)), ("", ""))


def _uses_proxy(parts: SplitResult, no_proxy: str) -> bool:
    host = _ascii(dialled_host(parts))
    address = _parse_address(host.partition("%")[0])
    # As in Go, whatever NO_PROXY says.
    if host == "localhost" or (address is not None and address.is_loopback):
        return False
    return not _parse_exceptions(no_proxy).match(host, address, parts.port or _PORTS[parts.scheme])


@dataclass(frozen=True, slots=True)
class _Exceptions:
    """NO_PROXY. Each address, domain and name stands with its port, or with "" for all ports."""

    is_all: bool = False
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    addresses: tuple[tuple[Address, str], ...] = ()
    domains: tuple[tuple[str, str], ...] = ()
    """Suffixes with a dot in front."""
    names: tuple[tuple[str, str], ...] = ()

    def match(self, host: str, address: Address | None, port: int) -> bool:
        ports = ("", str(port))
        return (
            self.is_all
            or (address is not None and any(address in network for network in self.networks))
            or any(address == one and of in ports for one, of in self.addresses)
            or (address is None and any(host.endswith(suffix) and of in ports for suffix, of in self.domains))
            or (address is None and any(host == name and of in ports for name, of in self.names))
        )


@lru_cache(maxsize=4)
def _parse_exceptions(text: str) -> _Exceptions:
    networks: list[IPv4Network | IPv6Network] = []
    addresses: list[tuple[Address, str]] = []
    domains: list[tuple[str, str]] = []
    names: list[tuple[str, str]] = []
    for part in text.split(","):
        entry = part.strip().lower()
        if entry == "*":
            return _Exceptions(is_all=True)
        # Ranges before ports, in the order of Go's httpproxy.
        if (network := _parse_network(entry)) is not None:
            networks.append(network)
            continue
        host, port = _split_port(entry)
        if (address := _parse_address(host)) is not None:
            addresses.append((address, port))
        elif host:
            host = _ascii(host.removeprefix("*") if host.startswith("*.") else host)
            if not host.startswith("."):
                names.append((host, port))
            domains.append((f".{host.removeprefix('.')}", port))
    return _Exceptions(False, tuple(networks), tuple(addresses), tuple(domains), tuple(names))


def _split_port(entry: str) -> tuple[str, str]:
    """Return host and port as Go's `net.SplitHostPort` reads them; the whole entry and "" where it reads no port."""
    host, colon, port = entry.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return entry, ""
    if not colon or "[" in host + port or "]" in host + port:
        return entry, ""
    return host, port


def _parse_network(entry: str) -> IPv4Network | IPv6Network | None:
    """Return a range as Go's `net.ParseCIDR` reads it: an IPv4-mapped one is a range of IPv4 addresses."""
    text, slash, bits = entry.partition("/")
    if not slash or not (bits.isascii() and bits.isdigit()) or "%" in text:
        return None
    try:
        network = (IPv6Network if ":" in text else IPv4Network)((text, int(bits)), strict=False)
    except ValueError:
        return None
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    return network if mapped is None else IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))


def _parse_address(text: str) -> Address | None:
    """Return an address as Go's `net.ParseIP` reads it: without zone, and IPv4 for an IPv4-mapped one."""
    try:
        address = ip_address(text) if "%" not in text else None
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def _ascii(name: str) -> str:
    """Return a name in the form of DNS (IDNA); as it is where that is not possible."""
    if name.isascii():
        return name
    try:
        return ".".join(label.encode("idna").decode("ascii") for label in name.split("."))
    except UnicodeError:
        return name
