"""Settings of a server under k3s's names: `/v1-k3s/config`, and what a joining server compares with it."""

from __future__ import annotations

from mooring.api.core.service.allocation import NODE_PORT_RANGE
from mooring.apimachinery.schema import Obj
from mooring.plane.configuration import ServerConfig
from mooring.settings.network import NetworkSettings
from mooring.trust.k3s.settings import AgentConfig, K3sSettings


def agent_config(config: ServerConfig, *, encrypts_secrets: bool) -> Obj:
    """Return the document of `/v1-k3s/config`."""
    k3s, network = config[K3sSettings], config[NetworkSettings]
    return AgentConfig(
        service_range=network.service_cluster_ip_range,
        node_ports=NODE_PORT_RANGE,
        pod_ranges=k3s.cluster_cidr,
        dns=k3s.cluster_dns,
        domain=k3s.cluster_domain,
        port=network.secure_port,
        address=config.advertise_address,
        bind_address=network.bind_address,
        encrypts_secrets=encrypts_secrets,
    ).to_json()
