"""Settings of a server under k3s's names, and the documents that its supervisor serves about them."""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from mooring.apimachinery.schema import Obj
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.settings.declaration import BOOLEAN, COMMA_SEPARATED, TEXT, Settings, file_setting, setting
from mooring.trust.encryption.configuration import AESCBC, AESGCM, IDENTITY, KMS, SECRETBOX, EncryptionProvider
from mooring.trust.k3s.acceptedtokens import parse_agent_token


def _agent_token(text: str, key: str) -> Secret | None:
    # The authenticator compares the length with what --allow-short-server-token says, which is a setting of another subject.
    return parse_agent_token(text.encode("utf-8", "surrogateescape"), key, least=1) if text else None


def _networks(texts: tuple[str, ...], key: str) -> tuple[str, ...]:
    try:
        return tuple(str(ipaddress.ip_network(text)) for text in texts)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}; give an address range such as 10.42.0.0/16") from None


def _addresses(texts: tuple[str, ...], key: str) -> tuple[str, ...]:
    try:
        return tuple(str(ipaddress.ip_address(text)) for text in texts)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class K3sSettings(Settings):
    """The supervisor API of k3s, and what agents read from it."""

    heading: ClassVar[str] = "k3s"

    k3s_supervisor: bool = setting(
        BOOLEAN,
        default=False,
        meaning="Serve k3s's supervisor API (/cacerts, /ping, /v1-k3s/...), with which k3s agents join; a server token is then "
        "always made.",
        everyday=True,
    )
    agent_token_file: str = file_setting(
        "File with the agent token: agents join with it, and no longer with the server token. Read again when it changes."
    )
    agent_token: Secret | None = setting(
        TEXT,
        default="",
        meaning="The agent token itself. Other users of the machine see a command line: prefer the file or the environment.",
        metavar="TOKEN",
        secret=True,
        parse=_agent_token,
    )
    k3s_node_password_fail_open: bool = setting(
        BOOLEAN,
        default=False,
        meaning="Give a machine its certificates when its node password cannot be stored, and verify it later, as k3s does. "
        "Another machine may then get the certificates of a name that is free; they are not taken back.",
    )
    cluster_cidr: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=("10.42.0.0/16",),
        meaning="Address ranges of Pods, as k3s agents and joining servers read them.",
        metavar="CIDR",
        parse=_networks,
    )
    cluster_dns: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="Addresses of the cluster's DNS, as k3s agents read them.",
        default_note="the tenth address of --service-cluster-ip-range",
        metavar="IP",
        parse=_addresses,
    )
    cluster_domain: str = setting(
        TEXT, default="cluster.local", meaning="Domain of the cluster, as k3s agents read it.", metavar="DOMAIN"
    )

    def __post_init__(self) -> None:
        """Raise ConfigError for two agent tokens, or one that nothing would use."""
        if self.agent_token_file and self.agent_token:
            raise ConfigError("agent-token-file: give the file or agent-token, not both")
        if (self.agent_token_file or self.agent_token) and not self.k3s_supervisor:
            raise ConfigError("agent-token: agents join with it through the supervisor API; give --k3s-supervisor, too")


# The document of `/v1-k3s/config`: settings of the cluster, under the names of k3s's Go structs.
#
# Rules kept here (docs/protocol/k3s.md#configuration-for-agents):
# * A field is here when an agent or a joining server reads it and this server has an answer. Others are absent, which Go reads as
#   zero.
# * Nothing secret is in it: no token, no IPSECPSK, no path of a key.
# * What this server does not run is said to be off, so that an agent does not wait for it: the network of Pods (flannel), the
#   egress proxy through the tunnel, the cloud controller, the network policy controller and the service load balancer.

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


# The document of `/v1-k3s/encrypt/status`: encryption of Secrets, in the words of k3s.
#
# Rules kept here (docs/protocol/k3s.md#encryption-status):
# * The first key writes and is the active one; the others only read. A provider without keys of its own is named by its kind.
# * Two stages are told apart: `start`, when a change of keys may begin, and `rotate`, while values of another key than the active
#   one exist. k3s's other stages are steps of its own command, which has no effect here.
# * Without a configuration the answer is that of k3s without its file: empty.

START, ROTATE = "start", "rotate"
_NAMES: Mapping[str, str] = {AESCBC: "AES-CBC", AESGCM: "AES-GCM", SECRETBOX: "XSalsa20-POLY1305", KMS: "KMS"}


def encryption_status(providers: Sequence[EncryptionProvider], stale: int, hashes: Collection[str]) -> Obj:
    """Return the document.

    `providers` are those of Secrets, `stale` is the number of values that another key than the first has written, and `hashes` are
    those of the configurations of all servers.
    """
    if not providers:
        return {"stage": "", "activekey": ""}
    writes = providers[0].kind != IDENTITY
    keys = list(_keys(providers))
    status: Obj = {
        "stage": ROTATE if stale else START,
        "activekey": keys[0] if writes and keys else "",
        "enable": writes,
    }
    if len(set(hashes)) <= 1:
        status["hashmatch"] = True
    else:
        status["hasherror"] = "the servers use different encryption configurations"
    if inactive := keys[1:] if writes else keys:
        status["inactivekeys"] = inactive
    return status


def _keys(providers: Sequence[EncryptionProvider]) -> Iterator[str]:
    for provider in providers:
        if provider.plugin is not None:
            yield f"{_NAMES[provider.kind]} {provider.plugin.name}"
        for key in provider.keys:
            yield f"{_NAMES[provider.kind]} {key.name}"
