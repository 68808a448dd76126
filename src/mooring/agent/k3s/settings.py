"""Settings of a join the k3s way: the flags of `k3s agent` that concern joining, with k3s's names, and Mooring's own beside them.

Rules kept here (docs/protocol/k3s.md#join-of-an-agent): labels that NodeRestriction lets no node set are refused before anything is
sent, and so are those that the agent reports itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooring.agent.k3s.files import DATA_DIR
from mooring.agent.loadbalancer import DEFAULT_PORT
from mooring.agent.node import REPORTED_LABELS
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.schema import Obj
from mooring.errors import ConfigError
from mooring.settings.addresses import parse_address, shown_value
from mooring.settings.declaration import COMMA_SEPARATED, PORT, SWITCH, TEXT, TEXTS, file_setting, setting
from mooring.trust.httpsurl import https_url_problem
from mooring.trust.joinconfiguration import MemberSettings, ip_addresses

MAX_SERVERS = 16
"""Seeds: as many as a cluster may have servers, and each may cost a timeout."""
MAX_ADDRESSES = 16
"""Addresses of one request for a certificate: a server of Mooring takes no more."""
DEFAULT_ENVIRONMENT_FILE = "/etc/systemd/system/k3s-agent.service.env"
"""File in which k3s's installer keeps K3S_TOKEN and K3S_URL."""


def _servers(texts: tuple[str, ...], key: str) -> tuple[str, ...]:
    if len(texts) > MAX_SERVERS:
        raise ConfigError(f"--{key}: at most {MAX_SERVERS} servers can be given")
    urls = tuple(dict.fromkeys(text.rstrip("/") for text in texts))
    for url in urls:
        if problem := https_url_problem(url):
            raise ConfigError(f"--{key}: {problem}; write it like https://192.0.2.10:6443")
    return urls


def _dns_names(texts: tuple[str, ...], key: str) -> tuple[str, ...]:
    """Return DNS names in lower case, each once."""
    names = tuple(dict.fromkeys(text.lower() for text in texts))
    for name in names:
        if dns1123_subdomain_errors(name) or parse_address(name) is not None:
            raise ConfigError(f"--{key}: {shown_value(name)} is not a DNS name")
    return names


def _labels(texts: tuple[str, ...], key: str) -> tuple[tuple[str, str], ...]:
    """Return labels that a node may set."""
    if not texts:
        return ()
    from mooring.api.core.registrationflags import parse_labels  # schemas are needed by few command lines
    from mooring.registry.admission.noderestriction import forbidden_labels

    labels = parse_labels(texts, f"--{key}")
    if own := [name for name in labels if name in REPORTED_LABELS]:
        raise ConfigError(f"--{key}: {', '.join(own)}: the agent sets this label from what it finds; leave it out")
    if refused := forbidden_labels({}, labels):
        label = f"{refused[0]}={labels[refused[0]]}"
        raise ConfigError(
            f"--{key}: no node may set {', '.join(refused)} itself (NodeRestriction); an administrator may, after the join: "
            f"kubectl label node NAME {label}"
        )
    return tuple(labels.items())


def _taints(texts: tuple[str, ...], key: str) -> tuple[Obj, ...]:
    if not texts:
        return ()
    from mooring.api.core.registrationflags import parse_taints  # schemas are needed by few command lines

    return parse_taints(texts, f"--{key}")


@dataclass(frozen=True, slots=True, kw_only=True)
class K3sJoinSettings(MemberSettings):
    """Settings of a join as k3s agent does it."""

    heading: ClassVar[str] = "A join the k3s way"

    server: tuple[str, ...] = setting(
        TEXTS,
        default=(),
        short="s",
        own_variable="K3S_URL",
        meaning="Join the k3s way: https URL of a server with k3s's supervisor API; repeatable, tried in order.",
        metavar="URL",
        parse=_servers,
    )
    token_file: str = file_setting(
        "With --server: file with the token, emptied after the join.", own_variable="K3S_TOKEN_FILE"
    )
    data_dir: str = setting(
        TEXT,
        default=DATA_DIR,
        short="d",
        own_variable="K3S_DATA_DIR",
        meaning="With --server: directory that holds agent/, the files of a k3s agent.",
        metavar="DIR",
    )
    node_external_ip: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="With --server: address of this node from outside, for the Node and its serving certificate; repeatable.",
        metavar="IP",
        parse=ip_addresses,
    )
    node_internal_dns: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="With --server: DNS name for the Node's InternalDNS addresses; repeatable.",
        metavar="NAME",
        parse=_dns_names,
    )
    node_external_dns: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="With --server: DNS name for the Node's ExternalDNS addresses; repeatable.",
        metavar="NAME",
        parse=_dns_names,
    )
    node_label: tuple[tuple[str, str], ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="With --server: label to create the Node with, of those that a node may set; repeatable.",
        metavar="KEY=VALUE",
        parse=_labels,
    )
    node_taint: tuple[Obj, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="With --server: taint to create the Node with; repeatable.",
        metavar="KEY=VALUE:EFFECT",
        parse=_taints,
    )
    with_node_id: bool = setting(
        SWITCH, default=False, meaning="With --server: append an id of this machine to the name of the node."
    )
    token_env_file: tuple[str, ...] = setting(
        TEXTS,
        default=(),
        meaning="With --server: environment file or config.yaml from which the token is removed after the join; repeatable.",
        default_note=DEFAULT_ENVIRONMENT_FILE,
        metavar="FILE",
    )
    lb_server_port: int = setting(
        PORT,
        default=DEFAULT_PORT,
        own_variable="K3S_LB_SERVER_PORT",
        meaning="With --server: port of the load balancer on 127.0.0.1; 0 for a free one.",
        metavar="PORT",
    )
    disable_apiserver_lb: bool = setting(
        SWITCH, default=False, meaning="With --server: no load balancer; kubeconfigs name the server itself."
    )
    keep_token_file: bool = setting(SWITCH, default=False, meaning="With --server: leave the token in these files.")

    def __post_init__(self) -> None:
        if len(self.node_ip) + len(self.node_external_ip) > MAX_ADDRESSES:
            raise ConfigError(f"--node-ip, --node-external-ip: at most {MAX_ADDRESSES} addresses can be given")
