"""What an operator can set, as frozen values; every error names the key and says what to give.

Rules kept here: flags carry kubeadm's and kube-apiserver's names; a value is checked once, here, before anything starts.
Nothing is read from disk or environment in this file: the command line passes texts in.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network

from mooring.config import serviceaccounts
from mooring.config.authentication import NOTHING_SAID, AuthenticationOptions
from mooring.config.serviceaccounts import ServiceAccountOptions
from mooring.errors import ConfigError

DEFAULT_PORT = 6443
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"{_LABEL}(\.{_LABEL})*", re.ASCII)
MAX_AUDIT_MIB = 1 << 20
MAX_AUDIT_FILES = 1000
"""They are numbered, and each rotation renames them all."""
MAX_AUDIT_DAYS = 36_500
MAX_HOST = 253
"""RFC 1035 2.3.4: characters of a DNS name as text."""
DEFAULT_SERVICE_RANGE = "10.96.0.0/12"
"""kubeadm's `--service-cidr`."""
SERVICE_PREFIXES = {4: (12, 28), 6: (64, 124)}
"""Longest and shortest range of Services by IP version: kube-apiserver takes none larger, and the tenth address is the DNS's."""
Network = IPv4Network | IPv6Network
_SERVICES = IPv4Network(DEFAULT_SERVICE_RANGE)


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


def parse_endpoint(text: str, key: str, default_port: int = DEFAULT_PORT, *, zones: bool = False) -> Endpoint:
    """Read `host`, `host:port`, `[v6]:port` or `v6`. Raises ConfigError naming `key`.

    `zones`: accept an IPv6 address with the interface that this machine reaches it by.
    """
    host, port, named = text, "", ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ConfigError(f'{key}: "{text}" is not host:port; write an IPv6 address as [::1]:6443')
        named, port = rest[:1], rest[1:]
    elif text.count(":") == 1:
        host, named, port = text.partition(":")
    if named and not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise ConfigError(f'{key}: the port of "{text}" is not a number from 1 to 65535')
    return Endpoint(parse_host(host, key, zones=zones), int(port) if port else default_port)


def parse_host(text: str, key: str, *, zones: bool = False) -> str:
    """A DNS name or IP address, normalised. Raises ConfigError naming `key`."""
    if "%" in text and not zones:
        raise ConfigError(
            f'{key}: "{text}" names an interface; other machines cannot use that, give a routable address'
        )
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        pass
    name = text.lower()
    if len(name) > MAX_HOST or not _HOST.fullmatch(name):
        raise ConfigError(f'{key}: "{text}" is neither a DNS name nor an IP address')
    return name


def parse_service_range(text: str) -> Network:
    """The range that ClusterIPs come from. Raises ConfigError."""
    key = "service-cluster-ip-range"
    if "," in text:
        raise ConfigError(f'{key}: "{text}" is more than one range; Services here have addresses of one family')
    try:
        found = ipaddress.ip_network(text, strict=False) if "/" in text else None
    except ValueError:
        found = None
    if found is None:
        raise ConfigError(f'{key}: "{text}" is not a range of addresses; write it like {DEFAULT_SERVICE_RANGE}')
    longest, shortest = SERVICE_PREFIXES[found.version]
    if not longest <= found.prefixlen <= shortest:
        raise ConfigError(f'{key}: "{text}" is too {"large" if found.prefixlen < longest else "small"}; '
                          f"for IPv{found.version}, give a prefix length from {longest} to {shortest}")  # fmt: skip
    return found


def parse_advertise_address(text: str, services: Network) -> str:
    """Where Pods reach the server, normalised. Raises ConfigError."""
    key = "advertise-address"
    try:
        address = str(ipaddress.ip_address(text))
    except ValueError:
        raise ConfigError(f'{key}: "{text}" is not an IP address') from None
    if why := _why_not_advertised(address, services):
        raise ConfigError(f'{key}: "{text}" {why}')
    return address


def _why_not_advertised(text: str, services: Network) -> str:
    """Why the endpoints of a Service cannot have this address; "" when they can."""
    address = ipaddress.ip_address(text)
    if address.is_unspecified or address.is_loopback or address.is_link_local or address.is_multicast:
        return "means something else on each machine; give an address of this one that others reach"
    if "%" in text or address.version != services.version:
        return f"is not of the family of {services}, the range of Services (service-cluster-ip-range)"
    if address in services:
        return f"is inside {services}, the range of Services (service-cluster-ip-range)"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Everything the server needs to know. Paths are texts, because this room does no I/O."""

    data_dir: str
    bind_address: str = "0.0.0.0"  # noqa: S104 - kube-apiserver's default: machines join over the network
    secure_port: int = DEFAULT_PORT
    endpoints: tuple[Endpoint, ...]
    extra_sans: tuple[str, ...] = ()
    advertise_address: str = ""
    """Where Pods reach this server; "" when nothing that others can use is known."""
    service_range: Network = _SERVICES
    storage: str = ""
    authorization_modes: tuple[str, ...] = ("Node", "RBAC")
    anonymous_auth: bool = True
    anonymous_per_second: float = 0.0
    audit_log_path: str = ""
    audit_policy_file: str = ""
    audit_log_maxsize: int = 100
    """MiB at which the file is rotated."""
    audit_log_maxbackup: int = 5
    audit_log_maxage: int = 0
    """Days; 0 keeps rotated files until newer ones push them out."""
    shutdown_delay: float = 0.0
    tls_cert_file: str = ""
    """The serving certificate, with its chain; "" for one of the cluster's own CA."""
    tls_private_key_file: str = ""
    root_ca_file: str = ""
    """CAs that verify the serving certificate; "" for those that are found to do so."""
    http2_serving: bool = True
    authentication: AuthenticationOptions = NOTHING_SAID
    service_accounts: ServiceAccountOptions = serviceaccounts.NOTHING_SAID

    @property
    def storage_url(self) -> str:
        return self.storage or f"sqlite:{self.data_dir}/mooring.db"


def server_config(
    *,
    data_dir: str,
    bind_address: str = "0.0.0.0",  # noqa: S104 - as above
    secure_port: int = DEFAULT_PORT,
    control_plane_endpoints: Sequence[str] = (),
    detected_addresses: Sequence[str] = (),
    extra_sans: Sequence[str] = (),
    advertise_address: str = "",
    service_cluster_ip_range: str = DEFAULT_SERVICE_RANGE,
    storage: str = "",
    authorization_mode: str = "Node,RBAC",
    anonymous_auth: bool = True,
    anonymous_requests_per_second: float = 0.0,
    audit_log_path: str | None = None,
    audit_policy_file: str = "",
    audit_log_maxsize: int = 100,
    audit_log_maxbackup: int = 5,
    audit_log_maxage: int = 0,
    shutdown_delay_duration: timedelta = timedelta(0),
    tls_cert_file: str = "",
    tls_private_key_file: str = "",
    root_ca_file: str = "",
    disable_http2_serving: bool = False,
    authentication: AuthenticationOptions = NOTHING_SAID,
    service_accounts: ServiceAccountOptions = serviceaccounts.NOTHING_SAID,
) -> ServerConfig:
    """Checked configuration from flag values.

    `detected_addresses` are this machine's, at most one of a family; without an endpoint the first is used. `audit_log_path`:
    None means `audit.log` in the data directory, "" means no audit log.
    """
    if not data_dir:
        raise ConfigError("data-dir: give a directory to keep the state in")
    if not 0 <= secure_port < 65536:
        raise ConfigError(f"secure-port: {secure_port} is not a port; give a number from 0 (any) to 65535")
    try:
        ipaddress.ip_address(bind_address)
    except ValueError:
        raise ConfigError(
            f'bind-address: "{bind_address}" is not an IP address; 0.0.0.0 means every IPv4 address'
        ) from None
    if not 0 <= anonymous_requests_per_second < math.inf:
        raise ConfigError("anonymous-requests-per-second: give 0 (no fixed rate) or a positive number")
    for key, value, least, most in (
        ("audit-log-maxsize", audit_log_maxsize, 1, MAX_AUDIT_MIB),
        ("audit-log-maxbackup", audit_log_maxbackup, 1, MAX_AUDIT_FILES),
        ("audit-log-maxage", audit_log_maxage, 0, MAX_AUDIT_DAYS),
    ):
        if not least <= value <= most:
            raise ConfigError(f"{key}: {value} is not a number from {least} to {most}")
    if bool(tls_cert_file) != bool(tls_private_key_file):
        missing, given = ("private-key", "cert") if tls_cert_file else ("cert", "private-key")
        raise ConfigError(f"tls-{missing}-file: it is needed with tls-{given}-file")
    modes = tuple(mode.strip() for mode in authorization_mode.split(",") if mode.strip())
    if "AlwaysAllow" in modes and anonymous_auth:
        anonymous_auth = False  # otherwise anonymous requests would be allowed everything
    services = parse_service_range(service_cluster_ip_range)
    bound = ipaddress.ip_address(bind_address)
    if advertise_address:
        advertise_address = parse_advertise_address(advertise_address, services)
    endpoints = tuple(parse_endpoint(text, "control-plane-endpoint", secure_port) for text in control_plane_endpoints)
    if not endpoints:
        own = next(iter(detected_addresses), "127.0.0.1") if bound.is_unspecified else str(bound)
        endpoints = (Endpoint(advertise_address or own, secure_port),)
    if not advertise_address:
        candidates = detected_addresses if bound.is_unspecified else (str(bound),)
        usable = (text for text in candidates if not _why_not_advertised(text, services))
        advertise_address = next(usable, "")
    return ServerConfig(
        data_dir=data_dir.rstrip("/") or "/",
        bind_address=bind_address,
        secure_port=secure_port,
        endpoints=endpoints,
        extra_sans=tuple(parse_host(name, "apiserver-cert-extra-sans") for name in extra_sans),
        advertise_address=advertise_address,
        service_range=services,
        storage=storage,
        authorization_modes=modes,
        anonymous_auth=anonymous_auth,
        anonymous_per_second=anonymous_requests_per_second,
        audit_log_path=f"{data_dir.rstrip('/')}/audit.log" if audit_log_path is None else audit_log_path,
        audit_policy_file=audit_policy_file,
        audit_log_maxsize=audit_log_maxsize,
        audit_log_maxbackup=audit_log_maxbackup,
        audit_log_maxage=audit_log_maxage,
        shutdown_delay=shutdown_delay_duration.total_seconds(),
        tls_cert_file=tls_cert_file,
        tls_private_key_file=tls_private_key_file,
        root_ca_file=root_ca_file,
        http2_serving=not disable_http2_serving,
        authentication=authentication,
        service_accounts=service_accounts,
    )
