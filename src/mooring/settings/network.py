"""Settings of addresses: the one to listen on, those for clients and Pods, and the range of Services."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mooring.errors import ConfigError
from mooring.settings.addresses import (
    DEFAULT_PORT,
    DEFAULT_SERVICE_RANGE,
    EVERY_ADDRESS,
    Address,
    Endpoint,
    Network,
    parse_address,
    parse_bind_address,
    parse_endpoint,
    parse_service_range,
    shown_value,
    unpublishable,
)
from mooring.settings.declaration import COMMA_SEPARATED, PORT, TEXT, Settings, setting


def _parse_port(value: int, key: str) -> int:
    if not 0 <= value < 65536:
        raise ConfigError(f"{key}: {value} is not a port; give a number from 0 (any) to 65535")
    return value


def _parse_advertise_address(text: str, key: str) -> str:
    try:
        return str(ipaddress.ip_address(text)) if text else ""
    except ValueError:
        raise ConfigError(f"{key}: {shown_value(text)} is not an IP address") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings(Settings):
    """Addresses of the server and of Services."""

    heading: ClassVar[str] = "Addresses"

    bind_address: str = setting(
        TEXT,
        default=EVERY_ADDRESS,
        meaning="IP address to listen on; 0.0.0.0 or :: means every address of both families.",
        metavar="IP",
        parse=parse_bind_address,
        everyday=True,
    )
    secure_port: int = setting(
        PORT,
        default=DEFAULT_PORT,
        meaning="Port to listen on; 0 takes a free one.",
        parse=_parse_port,
        everyday=True,
    )
    control_plane_endpoint: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="host[:port] under which clients reach the control plane; repeatable. All are published, the first as the address.",
        default_note="as on the last start, else this machine's addresses, one of each family",
        metavar="HOST[:PORT]",
        everyday=True,
    )
    withdraw_endpoint: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="host[:port] of an earlier start that is published no more; repeatable. Without it, it stays behind the others.",
        metavar="HOST[:PORT]",
    )
    advertise_address: str = setting(
        TEXT,
        default="",
        meaning="IP address under which Pods reach this server; the Service default/kubernetes leads there.",
        default_note="--bind-address, else this machine's address",
        metavar="IP",
        parse=_parse_advertise_address,
    )
    service_cluster_ip_range: Network = setting(
        TEXT,
        default=DEFAULT_SERVICE_RANGE,
        meaning="Address range of Services, IPv4 or IPv6; the first start of a cluster records it for good.",
        metavar="CIDR",
        parse=parse_service_range,
    )

    def __post_init__(self) -> None:
        """Raise ConfigError for an advertise address that Pods could not use."""
        if self.advertise_address and (reason := self._unusable(self.advertise_address)):
            raise ConfigError(f'advertise-address: "{self.advertise_address}" {reason}')

    def endpoints(self, detected: Sequence[str]) -> tuple[Endpoint, ...]:
        """Return the addresses to publish to clients, in order. Raises ConfigError.

        `detected` are the addresses of this machine, at most one of each family.
        """
        if self.control_plane_endpoint:
            return tuple(map(self._given_endpoint, self.control_plane_endpoint))
        hosts: Sequence[str] = (self.bind_address,)
        if self.advertise_address:
            hosts = (self.advertise_address,)
        elif self.listens_everywhere:
            hosts = detected or ("127.0.0.1",)
        elif "%" in self.bind_address:
            raise ConfigError(
                f'bind-address: "{self.bind_address}" names an interface; other machines cannot use that, give the address under '
                "which they reach the server with control-plane-endpoint"
            )
        return tuple(Endpoint(host, self.secure_port) for host in hosts)

    def _given_endpoint(self, text: str) -> Endpoint:
        endpoint = parse_endpoint(text, "control-plane-endpoint", self.secure_port)
        if reason := unpublishable(endpoint.host):
            raise ConfigError(f'control-plane-endpoint: "{text}" {reason}')
        return endpoint

    @property
    def listens_everywhere(self) -> bool:
        """Return True when the server listens on every address of both families."""
        return ipaddress.ip_address(self.bind_address).is_unspecified

    @property
    def publishes_detected(self) -> bool:
        """Return True when the addresses of the machine are published, because no setting names others."""
        return self.listens_everywhere and not self.control_plane_endpoint and not self.advertise_address

    def listens_at(self, address: Address) -> bool:
        """Return whether a connection to an address of this machine reaches the server."""
        return self.listens_everywhere or parse_address(self.bind_address) == address

    def is_reached_by(self, endpoint: Endpoint) -> bool:
        """Return whether an endpoint, of this machine, is listened on."""
        address = parse_address(endpoint.host)
        return address is not None and endpoint.port == self.secure_port and self.listens_at(address)

    def listens_in_family_of(self, address: Address) -> bool:
        """Return whether the server listens on addresses of this family at all."""
        return self.listens_everywhere or ipaddress.ip_address(self.bind_address).version == address.version

    def advertised(self, detected: Sequence[str]) -> str:
        """Return the address under which Pods reach this server, "" when no usable one is known."""
        if self.advertise_address:
            return self.advertise_address
        candidates = detected if self.listens_everywhere else (self.bind_address,)
        return next((text for text in candidates if not self._unusable(text)), "")

    def _unusable(self, text: str) -> str:
        """Return the reason for which the endpoints of a Service cannot have this address, "" when they can."""
        address, services = ipaddress.ip_address(text), self.service_cluster_ip_range
        if address.is_unspecified or address.is_loopback or address.is_link_local or address.is_multicast:
            return "means something else on each machine; give an address of this one that others reach"
        if "%" in text or address.version != services.version:
            return f"is not of the family of {services}, the range of Services (service-cluster-ip-range)"
        if address in services:
            return f"is inside {services}, the range of Services (service-cluster-ip-range)"
        return ""
