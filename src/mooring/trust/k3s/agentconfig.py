"""The document of `/v1-k3s/config`: settings of the cluster, under the names of k3s's Go structs.

Rules kept here (docs/protocol/k3s.md#configuration-for-agents):
* A field is here when an agent or a joining server reads it and this server has an answer. Others are absent, which Go reads as
  zero.
* Nothing secret is in it: no token, no IPSECPSK, no path of a key.
* What this server does not run is said to be off, so that an agent does not wait for it: the network of Pods (flannel), the egress
  proxy through the tunnel, the cloud controller, the network policy controller and the service load balancer.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from mooring.apimachinery.schema import Obj

TLS_1_2 = 0x0303
"""Number of the oldest version of TLS that the server speaks, as Go has it."""
DNS_INDEX = 10
"""Place of the DNS Service in the range of Services, as k3s and kubeadm choose it."""

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Settings that agents read."""

    service_range: _Network
    node_ports: range
    pod_ranges: Sequence[str]
    dns: Sequence[str]
    """Addresses of the DNS; empty for the usual one in the range of Services."""
    domain: str
    port: int
    address: str
    """Address under which Pods reach this server; "" when none is known."""
    bind_address: str
    encrypts_secrets: bool

    def to_json(self) -> Obj:
        """Return the document."""
        pods = [_ip_net(ipaddress.ip_network(text)) for text in self.pod_ranges]
        dns = list(self.dns) or [str(self.service_range[DNS_INDEX])]
        services = _ip_net(self.service_range)
        return {
            "ClusterDNSs": dns,
            "ClusterIPRanges": pods,
            "ClusterDNS": dns[0],
            "ClusterDomain": self.domain,
            "ClusterIPRange": pods[0] if pods else None,
            "DisableCCM": True,
            "DisableHelmController": True,
            "DisableNPC": True,
            "DisableServiceLB": True,
            "EncryptSecrets": self.encrypts_secrets,
            "EmbeddedRegistry": False,
            "FlannelBackend": "none",
            "FlannelIPv6Masq": False,
            "FlannelExternalIP": False,
            "EgressSelectorMode": "disabled",
            "ServiceIPRange": services,
            "ServiceIPRanges": [services],
            "AdvertisePort": self.port,
            "AdvertiseIP": self.address,
            "HTTPSPort": self.port,
            "SupervisorPort": self.port,
            "APIServerPort": self.port,
            "APIServerBindAddress": self.bind_address,
            "ServiceNodePortRange": {"Base": self.node_ports.start, "Size": len(self.node_ports)},
            "Disables": {},
            "DisableAPIServer": False,
            "DisableETCD": True,
            "DisableKubeProxy": False,
            "DisableScheduler": True,
            "Skips": {},
            "TLSMinVersion": TLS_1_2,
            "TLSCipherSuites": None,
            "BindAddress": self.bind_address,
        }


def _ip_net(network: _Network) -> Obj:
    """Return a network as Go's encoding/json writes a `net.IPNet`."""
    return {"IP": str(network.network_address), "Mask": base64.b64encode(network.netmask.packed).decode()}
