"""Flags of `agent` for a join the k3s way, with the environment that a k3s user expects.

Rules kept here (docs/protocol/k3s.md#join-of-an-agent):
* `--server`, or K3S_URL without a flag of the other way of joining, chooses this way. Flags of both on one command line are an
  error that names them.
* The token is that of `--token`, `--token-file`, K3S_TOKEN or K3S_TOKEN_FILE, in this order. It may be missing for a member.
* A token on the command line can be read by every user of the machine: the program starts itself once more without it, and hands it
  over in memory. Hooks and other children do not get it from the environment.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import click
from click.core import ParameterSource

from mooring.agent.k3s.files import DATA_DIR
from mooring.agent.k3s.giventoken import DESCRIPTORS, MAX_TOKEN_FILE, GivenToken
from mooring.agent.k3s.membership import AgentPlan
from mooring.agent.loadbalancer.proxy import DEFAULT_PORT
from mooring.cli.join.flags import JoinFlags
from mooring.cli.options.flags import usage
from mooring.client.files import read_limited
from mooring.secret import Secret
from mooring.settings.addresses import parse_address
from mooring.settings.kinds import split_commas
from mooring.trust.httpsurl import https_url_problem
from mooring.trust.joinconfiguration import check_node_name
from mooring.trust.k3s.exchanges import JOIN_POLLING
from mooring.trust.k3s.token import TokenFormatError, parse_token

P = ParamSpec("P")
R = TypeVar("R")

MAX_SERVERS = 16
"""Seeds: as many as a cluster may have servers, and each may cost a timeout."""
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
        multiple=True,
        metavar="URL",
        help="Join the k3s way: https URL of a server with k3s's supervisor API; repeatable, tried in order. [env var: K3S_URL]",
    ),
    click.option(
        "--token-file",
        default="",
        metavar="FILE",
        help="With --server: file with the token, emptied after the join. [env var: K3S_TOKEN_FILE]",
    ),
    click.option(
        "--data-dir",
        default=DATA_DIR,
        show_default=True,
        metavar="DIR",
        help="With --server: directory that holds agent/, the files of a k3s agent.",
    ),
    click.option(
        "--node-ip",
        multiple=True,
        metavar="IP",
        help="With --server: address of this node; repeatable. [default: the one towards the server]",
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
    token_file: str
    data_dir: str
    node_ip: Sequence[str]
    with_node_id: bool
    token_env_file: Sequence[str]
    lb_server_port: int
    disable_apiserver_lb: bool
    keep_token_file: bool

    def servers(self, context: click.Context) -> tuple[str, ...]:
        """Return the servers when the join is to be the k3s way; none otherwise. Raises UsageError for flags of both ways."""
        others = [name for name in OTHER_WAY if is_given(context, name)]
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
                raise click.UsageError(f"{_flag(name)} needs --server: it is for a join the k3s way")
        return ()

    def plan(self, servers: Sequence[str], token: str, given: JoinFlags) -> AgentPlan:
        """Return the validated plan. `token` is that of `--token`, or empty. Raises UsageError."""
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
        addresses = split_commas(self.node_ip)
        for one in addresses:
            if parse_address(one) is None:
                raise click.UsageError(f'--node-ip: "{one}" is not an IP address')
        source = self._token(token, given.token, options.root)
        return AgentPlan(
            servers=tuple(dict.fromkeys(urls)),
            node_name=name,
            token=source,
            root=options.root,
            data_dir=self.data_dir,
            node_addresses=addresses,
            adds_node_id=self.with_node_id,
            register_node=options.register_node,
            node_deletion=options.node_deletion,
            load_balancer_port=None if self.disable_apiserver_lb else self.lb_server_port,
            polling=replace(JOIN_POLLING, total=options.polling.total),
        )

    def _token(self, from_flag: str, from_environment: str, root: Path) -> GivenToken:
        """Return the token and its places, as flags and environment say. Raises UsageError, ConfigError."""
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
                raise click.UsageError(f"{'--token' if from_flag else 'the token'}: {error}") from None
        default = root / DEFAULT_ENVIRONMENT_FILE.lstrip("/")
        kept = tuple(Path(one).absolute() for one in self.token_env_file) or (default,)
        return GivenToken(value, Path(file).absolute() if file else None, kept, self.keep_token_file)


def _handed_over(place: str) -> Secret | None:
    """Return the token behind a descriptor, which is closed then. Raises ConfigError."""
    token = Secret(read_limited(Path(place), MAX_TOKEN_FILE).strip())
    number = place.rpartition("/")[2]
    if number.isdecimal() and int(number) > STANDARD_ERROR:
        os.close(int(number))
    return token or None


def is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _flag(name: str) -> str:
    return "ADDRESS" if name == "address" else "--" + name.replace("_", "-")
