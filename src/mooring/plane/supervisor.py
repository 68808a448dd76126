"""Builds the supervisor API of k3s for one server process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mooring.pki.pem import certificates_pem
from mooring.plane.authentication import Authentication
from mooring.plane.configuration import ServerConfig
from mooring.plane.serving.pair import ServingPair
from mooring.registry.store import Registry
from mooring.server.endpoints.supervisor.services import SupervisorServices
from mooring.server.endpoints.supervisor.table import routes
from mooring.server.hostshare.share import HostShare
from mooring.server.supervised import InFlight, Supervisor
from mooring.settings.network import NetworkSettings
from mooring.trust.k3s.settings import K3sSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorParts:
    """Parts of the server that the supervisor API shows or uses."""

    config: ServerConfig
    authentication: Authentication
    serving: ServingPair
    registry: Registry
    addresses: Callable[[], tuple[str, ...]]
    """Returns the addresses of the servers that live."""
    ready: Callable[[], bool]


def build_supervisor(parts: SupervisorParts, share: HostShare) -> Supervisor | None:
    """Return the supervisor API; None unless it is turned on."""
    if not parts.config[K3sSettings].k3s_supervisor:
        return None
    return Supervisor(
        find=routes(_services(parts)),
        authenticators=parts.authentication.supervisor_authenticators,
        schemes=parts.authentication.supervisor_schemes,
        in_flight=InFlight(share),
    )


def _services(parts: SupervisorParts) -> SupervisorServices:
    port = parts.config[NetworkSettings].secure_port
    return SupervisorServices(
        server_ca=lambda: parts.serving.root_ca.pem,
        client_ca=lambda: certificates_pem(parts.authentication.client_cas.clients),
        config=lambda: _agent_config(parts.config),
        apiservers=lambda: tuple(_host_port(address, port) for address in parts.addresses()),
        ready=parts.ready,
    )


def _host_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _agent_config(config: ServerConfig) -> Mapping[str, Any]:
    network = config[NetworkSettings]
    return {"ClusterDomain": config[K3sSettings].cluster_domain, "HTTPSPort": network.secure_port}
