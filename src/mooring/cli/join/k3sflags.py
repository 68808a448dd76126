"""Flags of `agent` for a join the k3s way, with the environment that a k3s user expects.

Rules kept here (docs/protocol/k3s.md#join-of-an-agent):
* `--server`, or K3S_URL without a flag of the other way of joining, chooses this way. Flags of both on one command line are an
  error that names them.
* Flags win over k3s's configuration file (`k3sconfig`), the file over the environment, as in k3s.
* The token is that of `--token`, `--token-file`, K3S_TOKEN or K3S_TOKEN_FILE, in this order. It may be missing for a member. A flag
  for it replaces both keys of the file.
* Labels that NodeRestriction lets no node set are refused before anything is sent.
* A token on the command line can be read by every user of the machine: the program starts itself once more without it, and hands it
  over in memory. Hooks and other children do not get it from the environment.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import click
from click.core import ParameterSource

from mooring.agent.k3s.files import DATA_DIR
from mooring.agent.k3s.giventoken import DESCRIPTORS, MAX_TOKEN_FILE, GivenToken
from mooring.agent.k3s.membership import AgentPlan
from mooring.agent.loadbalancer.proxy import DEFAULT_PORT
from mooring.agent.node import REPORTED_LABELS
from mooring.agent.state import NodeState
from mooring.api.core.node.registrationflags import parse_labels, parse_taints
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.cli.join import k3sconfig
from mooring.cli.join.flags import JoinFlags
from mooring.cli.join.k3sconfig import DEFAULT_CONFIG
from mooring.cli.options.flags import usage
from mooring.client.files import read_limited
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.settings.addresses import parse_address
from mooring.settings.kinds import split_commas
from mooring.trust.httpsurl import https_url_problem
from mooring.trust.joinconfiguration import check_node_name
from mooring.trust.k3s.agentfile import AgentFile
from mooring.trust.k3s.exchanges import JOIN_POLLING
from mooring.trust.k3s.token import TokenFormatError, parse_token

P = ParamSpec("P")
R = TypeVar("R")

MAX_SERVERS = 16
"""Seeds: as many as a cluster may have servers, and each may cost a timeout."""
MAX_ADDRESSES = 16
"""Addresses of one request for a certificate: a server of Mooring takes no more."""
TOKENS = ("token", "token_file")
STANDARD_ERROR = 2
"""Descriptors up to this one stay open."""
DEFAULT_ENVIRONMENT_FILE = "/etc/systemd/system/k3s-agent.service.env"
"""File in which k3s's installer keeps K3S_TOKEN and K3S_URL."""
OTHER_WAY = (
    "address",
    "discovery_token",
    "tls_bootstrap_token",
    "discovery_token_ca_cert_hash",
    "discovery_token_unsafe_skip_ca_verification",
    "discovery_file",
    "allow_discovery_credentials",
    "tls_bootstrap_timeout",
    "certificate_lifetime",
    "machine_code_file",
    "serving_certificates",
)
"""Parameters that belong to a join as kubeadm does it."""

_FLAGS = (
    click.option(
        "--server",
        "-s",
        multiple=True,
        metavar="URL",
        help="Join the k3s way: https URL of a server with k3s's supervisor API; repeatable, tried in order. [env var: K3S_URL]",
    ),
    click.option(
        "--config",
        "-c",
        default="",
        envvar="K3S_CONFIG_FILE",
        show_envvar=True,
        metavar="FILE",
        help="k3s's configuration file, whose keys are flags without their dashes, with the drop-ins in FILE.d; flags win over it. "
        f"[default: {DEFAULT_CONFIG} below --root, if it is there]",
    ),
    click.option(
        "--token-file",
        default="",
        metavar="FILE",
        help="With --server: file with the token, emptied after the join. [env var: K3S_TOKEN_FILE]",
    ),
    click.option(
        "--data-dir",
        "-d",
        default=DATA_DIR,
        envvar="K3S_DATA_DIR",
        show_envvar=True,
        show_default=True,
        metavar="DIR",
        help="With --server: directory that holds agent/, the files of a k3s agent.",
    ),
    click.option(
        "--node-ip",
        "-i",
        multiple=True,
        metavar="IP",
        help="With --server: address of this node; repeatable. [default: the one towards the server]",
    ),
    click.option(
        "--node-external-ip",
        multiple=True,
        metavar="IP",
        help="With --server: address of this node from outside, for the Node and its serving certificate; repeatable.",
    ),
    click.option(
        "--node-internal-dns",
        multiple=True,
        metavar="NAME",
        help="With --server: DNS name for the Node's InternalDNS addresses; repeatable.",
    ),
    click.option(
        "--node-external-dns",
        multiple=True,
        metavar="NAME",
        help="With --server: DNS name for the Node's ExternalDNS addresses; repeatable.",
    ),
    click.option(
        "--node-label",
        multiple=True,
        metavar="KEY=VALUE",
        help="With --server: label to create the Node with, of those that a node may set; repeatable.",
    ),
    click.option(
        "--node-taint",
        multiple=True,
        metavar="KEY=VALUE:EFFECT",
        help="With --server: taint to create the Node with; repeatable.",
    ),
    click.option(
        "--with-node-id", is_flag=True, help="With --server: append an id of this machine to the name of the node."
    ),
    click.option(
        "--token-env-file",
        multiple=True,
        metavar="FILE",
        help="With --server: environment file or config.yaml from which the token is removed after the join; repeatable. "
        f"[default: {DEFAULT_ENVIRONMENT_FILE}]",
    ),
    click.option(
        "--lb-server-port",
        type=click.IntRange(0, 65535),
        default=DEFAULT_PORT,
        envvar="K3S_LB_SERVER_PORT",
        show_envvar=True,
        show_default=True,
        metavar="PORT",
        help="With --server: port of the load balancer on 127.0.0.1; 0 for a free one.",
    ),
    click.option(
        "--disable-apiserver-lb",
        is_flag=True,
        help="With --server: no load balancer; kubeconfigs name the server itself.",
    ),
    click.option("--keep-token-file", is_flag=True, help="With --server: leave the token in these files."),
)


def k3s_flags(function: Callable[P, R]) -> Callable[P, R]:
    """Add the flags. The command receives them as keywords for `K3sFlags`."""
    for flag in reversed(_FLAGS):
        function = flag(function)
    return function


@dataclass(frozen=True, slots=True, kw_only=True)
class K3sFlags:
    """Values of the flags."""

    server: Sequence[str]
    config: str
    token_file: str
    data_dir: str
    node_ip: Sequence[str]
    node_external_ip: Sequence[str]
    node_internal_dns: Sequence[str]
    node_external_dns: Sequence[str]
    node_label: Sequence[str]
    node_taint: Sequence[str]
    with_node_id: bool
    token_env_file: Sequence[str]
    lb_server_port: int
    disable_apiserver_lb: bool
    keep_token_file: bool

    def with_file(self, context: click.Context, given: JoinFlags) -> tuple[K3sFlags, JoinFlags, AgentFile]:
        """Return the flags with those of k3s's configuration file where the command line gives none, and the file.

        The file has the values that count. It is empty when there is none, and for a join the other way. Raises ConfigError.
        """
        file = self._file(context, Path(given.root))
        values = {key.replace("-", "_"): value for key, value in file.values.items()}
        if any(is_given(context, name) for name in TOKENS):
            values = {name: value for name, value in values.items() if name not in TOKENS}
        values = {name: value for name, value in values.items() if not is_given(context, name)}
        own = {name: value for name, value in values.items() if name in self.__slots__}
        shared = {name: value for name, value in values.items() if name not in own}
        taken = {name.replace("_", "-"): value for name, value in values.items()}
        return replace(self, **own), replace(given, **shared), replace(file, values=taken)

    def _file(self, context: click.Context, root: Path) -> AgentFile:
        chosen = bool(self.server or os.environ.get("K3S_URL", "") or self.config)
        if _other_way(context) or (not chosen and NodeState(root).kubeconfig.exists()):
            return AgentFile()  # a member that joined kubeadm's way does not depend on a file of k3s
        return k3sconfig.read(self.config, root)

    def servers(self, context: click.Context) -> tuple[str, ...]:
        """Return the servers when the join is to be the k3s way; none otherwise. Raises UsageError for flags of both ways."""
        others = _other_way(context)
        if others[:1] == ["address"] and all(text.isdecimal() for text in context.params["address"]):
            raise click.UsageError("-v takes no number: -v and -vv make Mooring's agent log more")
        if self.server:
            if others:
                raise click.UsageError(
                    f"{_flag(others[0])} and --server belong to two ways of joining: give the address of an API server, or --server"
                )
            return tuple(self.server)
        from_environment = os.environ.get("K3S_URL", "")
        if from_environment and not others:
            return (from_environment,)
        for name in self.__slots__:
            if is_given(context, name):
                if name == "config" and not others:
                    raise click.UsageError("--config: the file names no server; give the key server, or --server")
                raise click.UsageError(f"{_flag(name)} needs --server: it is for a join the k3s way")
        return ()

    def plan(self, servers: Sequence[str], token: str, given: JoinFlags, file: AgentFile) -> AgentPlan:
        """Return the validated plan. `token` is that of `--token` or of the file, or empty. Raises UsageError."""
        if len(servers) > MAX_SERVERS:
            raise click.UsageError(f"--server: at most {MAX_SERVERS} servers can be given")
        urls = []
        for one in servers:
            url = one.rstrip("/")
            if problem := https_url_problem(url):
                raise click.UsageError(f"--server: {problem}; write it like https://192.0.2.10:6443")
            urls.append(url)
        options = given.options()
        name = given.node_name or os.environ.get("K3S_NODE_NAME", "") or socket.gethostname().lower()
        with usage():
            check_node_name(name)
        addresses = _addresses("--node-ip", self.node_ip)
        external = _addresses("--node-external-ip", self.node_external_ip)
        if len(addresses) + len(external) > MAX_ADDRESSES:
            raise click.UsageError(f"--node-ip, --node-external-ip: at most {MAX_ADDRESSES} addresses can be given")
        with usage():
            labels = parse_labels(split_commas(self.node_label), "--node-label")
            taints = parse_taints(split_commas(self.node_taint), "--node-taint")
        _check_labels(labels)
        source = self._token(token, given.token, options.root, file)
        return AgentPlan(
            servers=tuple(dict.fromkeys(urls)),
            node_name=name,
            token=source,
            root=options.root,
            data_dir=self.data_dir,
            node_addresses=addresses,
            external_addresses=external,
            internal_names=_dns_names("--node-internal-dns", self.node_internal_dns),
            external_names=_dns_names("--node-external-dns", self.node_external_dns),
            node_labels=labels,
            node_taints=taints,
            adds_node_id=self.with_node_id,
            register_node=options.register_node,
            node_deletion=options.node_deletion,
            load_balancer_port=None if self.disable_apiserver_lb else self.lb_server_port,
            polling=replace(JOIN_POLLING, total=options.polling.total),
        )

    def _token(self, from_flag: str, from_environment: str, root: Path, config: AgentFile) -> GivenToken:
        """Return the token and its places, as flags, file and environment say. Raises UsageError, ConfigError."""
        if from_flag and self.token_file:
            raise click.UsageError("--token and --token-file cannot both be given")
        environment = os.environ
        text, file = from_flag, self.token_file
        if not text and not file:
            text = environment.get("K3S_TOKEN", "") or from_environment
        if not text and not file:
            file = environment.get("K3S_TOKEN_FILE", "")
        for name in ("K3S_TOKEN", "MOORING_TOKEN"):
            environment.pop(name, None)  # children of this process do not get it
        value = Secret(text.encode("utf-8", "surrogateescape")) if text else None
        if file.startswith(DESCRIPTORS):
            value, file = _handed_over(file), ""
        if value is not None:
            try:
                parse_token(value.reveal())
            except TokenFormatError as error:
                if "token" in config.values:
                    raise ConfigError(f"{config.token_paths[-1]}: token: {error}") from None
                raise click.UsageError(f"{'--token' if from_flag else 'the token'}: {error}") from None
        default = root / DEFAULT_ENVIRONMENT_FILE.lstrip("/")
        kept = tuple(Path(one).absolute() for one in self.token_env_file) or (default,)
        kept += tuple(Path(one).absolute() for one in config.token_paths)
        return GivenToken(value, Path(file).absolute() if file else None, kept, self.keep_token_file)


def _handed_over(place: str) -> Secret | None:
    """Return the token behind a descriptor, which is closed then. Raises ConfigError."""
    token = Secret(read_limited(Path(place), MAX_TOKEN_FILE).strip())
    number = place.rpartition("/")[2]
    if number.isdecimal() and int(number) > STANDARD_ERROR:
        os.close(int(number))
    return token or None


def _addresses(flag: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return IP addresses, each once and in one form. Raises UsageError."""
    found = []
    for text in split_commas(texts):
        address = parse_address(text)
        if address is None:
            raise click.UsageError(f'{flag}: "{text}" is not an IP address')
        found.append(str(address))
    return tuple(dict.fromkeys(found))


def _dns_names(flag: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return DNS names in lower case, each once. Raises UsageError."""
    names = tuple(dict.fromkeys(text.lower() for text in split_commas(texts)))
    for name in names:
        if dns1123_subdomain_errors(name) or parse_address(name) is not None:
            raise click.UsageError(f'{flag}: "{name}" is not a DNS name')
    return names


def _check_labels(labels: Mapping[str, str]) -> None:
    """Raise UsageError for a label that a node may not set, or that the agent reports itself."""
    if not labels:
        return
    from mooring.registry.admission.noderestriction.plugin import forbidden_labels  # needed by few command lines

    if own := [key for key in labels if key in REPORTED_LABELS]:
        raise click.UsageError(
            f"--node-label: {', '.join(own)}: the agent sets this label from what it finds; leave it out"
        )
    if refused := forbidden_labels({}, labels):
        label = f"{refused[0]}={labels[refused[0]]}"
        raise click.UsageError(
            f"--node-label: no node may set {', '.join(refused)} itself (NodeRestriction); an administrator may, after the join: "
            f"kubectl label node NAME {label}"
        )


def _other_way(context: click.Context) -> list[str]:
    """Return the parameters on the command line that belong to a join as kubeadm does it."""
    return [name for name in OTHER_WAY if is_given(context, name)]


def is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _flag(name: str) -> str:
    return "ADDRESS" if name == "address" else "--" + name.replace("_", "-")
