"""Settings of k3s's join protocol: the supervisor API, the agent token, and values that agents read."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import ClassVar

from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.settings.declaration import Settings, file_setting, setting
from mooring.settings.valuetypes import BOOLEAN, COMMA_SEPARATED, TEXT
from mooring.trust.k3s.agenttoken import parse_agent_token


def _agent_token(text: str, key: str) -> Secret | None:
    # the authenticator compares the length with what --allow-short-server-token says, which is a setting of another subject
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
