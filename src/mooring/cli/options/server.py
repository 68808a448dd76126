"""Flags that several commands share, with kubeadm's and kube-apiserver's names.

Rules kept here:
* Every server flag can also be given as the environment variable `MOORING_<FLAG>`, and in the file of `--config`
  (`mooring.cli.options.configfile`); the command line wins. Values are checked once, by `mooring.config`.
* Durations are written as Go writes them (`24h0m0s`, `90s`). Lists may be repeated, or given once with commas.
* State lives in /var/lib/mooring for root, else in the user's own data directory (XDG base directories).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from mooring.cli.options import authentication as authoptions
from mooring.cli.options import configfile
from mooring.cli.options import serviceaccounts as serviceaccountoptions
from mooring.cli.options.flags import DURATION, Decorator, flag, listed
from mooring.config import DEFAULT_PORT, DEFAULT_SERVICE_RANGE, ServerConfig, server_config
from mooring.errors import ConfigError, MooringError

P = ParamSpec("P")
R = TypeVar("R")

_NOWHERE = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))
"""Addresses for documentation (RFC 5737, RFC 3849): a route is chosen for them, and nothing is ever sent."""


def default_data_dir() -> str:
    """Where state is kept unless `--data-dir` says otherwise."""
    if os.geteuid() == 0:
        return "/var/lib/mooring"
    base = os.environ.get("XDG_DATA_HOME", "")
    # the specification has relative paths ignored
    root = Path(base) if base.startswith("/") else Path.home() / ".local" / "share"
    return str(root / "mooring")


def detected_addresses() -> tuple[str, ...]:
    """The addresses of the interfaces that the default routes use, IPv4 first; none without a route. Sends nothing."""
    found = []
    for address, family in _NOWHERE:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))
                found.append(str(probe.getsockname()[0]))
        except OSError:
            continue
    return tuple(found)


def published_before(data_dir: Path, local: Collection[str]) -> tuple[str, ...]:
    """The `host:port` this control plane was published under, so that a restart without the flag keeps it.

    Empty when there is none, and when it is the only one and its host an address of this machine: that follows the flags of this
    start. Several were named by an operator.
    """
    from urllib.parse import urlsplit

    from mooring.client.files import read_limited  # loaded here: commands that start no server do without
    from mooring.trust.kubeconfig.model import other_addresses
    from mooring.trust.kubeconfig.text import parse

    try:
        config = parse(read_limited(data_dir / "admin.conf"))
        cluster = config.clusters[0]
        servers = [urlsplit(entry.server) for entry in (cluster, *other_addresses(config, cluster))]
    except (MooringError, IndexError, ValueError):
        return ()
    if not servers[0].netloc or (len(servers) == 1 and servers[0].hostname in local):
        return ()
    return tuple(server.netloc for server in servers)


def free_port(address: str) -> int:
    """A TCP port nobody listens on at `address` right now, for `--secure-port 0`. DEFAULT_PORT when the address is not ours."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
            return int(probe.getsockname()[1])
    except OSError:
        return DEFAULT_PORT  # binding again fails with the sentence that names the address


_SERVER_FLAGS: tuple[Decorator[..., Any], ...] = (
    flag(
        "--data-dir",
        "Directory of the state; admin.conf is written there. [default: /var/lib/mooring as root, "
        "else ~/.local/share/mooring]",
        metavar="DIR",
    ),
    flag("--bind-address", "IP address to listen on.", default="0.0.0.0", show_default=True, metavar="IP"),  # noqa: S104 - kube-apiserver's default
    flag(
        "--secure-port",
        "Port to listen on; 0 takes a free one.",
        type=click.IntRange(0, 65535),
        default=DEFAULT_PORT,
        show_default=True,
    ),
    flag(
        "--control-plane-endpoint",
        "host[:port] under which clients reach the control plane; repeatable. All are published, the first as the address. "
        "[default: as on the last start, else this machine's address]",
        multiple=True,
        metavar="HOST[:PORT]",
    ),
    flag(
        "--advertise-address",
        "IP address under which Pods reach this server; the Service default/kubernetes leads there. "
        "[default: --bind-address, else this machine's address]",
        default="",
        metavar="IP",
    ),
    flag(
        "--service-cluster-ip-range",
        "Range that Services get their addresses from, IPv4 or IPv6; stays as it was when the cluster was made.",
        default=DEFAULT_SERVICE_RANGE,
        show_default=True,
        metavar="CIDR",
    ),
    flag(
        "--apiserver-cert-extra-sans",
        "More names and addresses for the serving certificate; repeatable, or with commas.",
        multiple=True,
        metavar="NAME,...",
    ),
    flag(
        "--tls-cert-file",
        "Serving certificate of your own, with its chain behind it; read again when it changes. "
        "[default: one of the cluster's CA]",
        default="",
        metavar="FILE",
    ),
    flag(
        "--tls-private-key-file",
        "Its private key; read again when it changes.",
        default="",
        metavar="FILE",
    ),
    flag(
        "--root-ca-file",
        "CAs that verify the serving certificate, published for joining machines, Pods and kubeconfigs; read again when "
        "it changes. [default: the root of --tls-cert-file, else the cluster's CA]",
        default="",
        metavar="FILE",
    ),
    flag(
        "--storage",
        "Where objects are kept: sqlite:PATH or memory:. [default: sqlite in the data directory]",
        default="",
        metavar="URL",
    ),
    flag(
        "--authorization-mode",
        "Authorizers to ask, in order, with commas.",
        default="Node,RBAC",
        show_default=True,
        metavar="MODE,...",
    ),
    flag(
        "--anonymous-auth",
        "Whether requests without credentials are let through as system:anonymous.",
        type=bool,
        is_flag=False,
        flag_value="true",
        default=True,
        show_default=True,
        metavar="BOOL",
    ),
    flag(
        "--anonymous-requests-per-second",
        "Fixed rate for anonymous requests; 0: they wait only when others would.",
        type=float,
        default=0.0,
        show_default=True,
        metavar="RATE",
    ),
    flag(
        "--audit-log-path",
        "File for one audit record a request, rotated by size; - is standard output, empty for none. "
        "[default: audit.log in the data directory]",
        default=None,
        metavar="PATH",
    ),
    flag(
        "--audit-policy-file",
        "Policy (audit.k8s.io/v1) that says what the audit log keeps of which request. "
        "[default: every request, level Metadata]",
        default="",
        metavar="FILE",
    ),
    flag(
        "--audit-log-maxsize",
        "MiB at which the audit log is rotated.",
        type=int,
        default=100,
        show_default=True,
    ),
    flag(
        "--audit-log-maxbackup",
        "How many rotated audit logs are kept.",
        type=int,
        default=5,
        show_default=True,
    ),
    flag(
        "--audit-log-maxage",
        "For how many days a rotated audit log is kept; 0: however old it is.",
        type=int,
        default=0,
        show_default=True,
    ),
    flag(
        "--shutdown-delay-duration",
        "How long to go on serving, not ready, when asked to stop.",
        type=DURATION,
        default="0s",
        show_default=True,
    ),
    flag(
        "--disable-http2-serving",
        "Speak HTTP/1.1 only, also with clients that offer HTTP/2.",
        type=bool,
        is_flag=False,
        flag_value="true",
        default=False,
        show_default=True,
    ),
)


def server_options(function: Callable[P, R]) -> Callable[P, R]:
    """Add every flag of a server; the command gets them as keywords for `server_configuration`."""
    groups = (_SERVER_FLAGS, serviceaccountoptions.SERVICE_ACCOUNT_FLAGS, authoptions.AUTHENTICATION_FLAGS)
    for add in reversed([configfile.config_option, *(each for group in groups for each in group)]):
        function = add(function)
    return function


def server_configuration(
    *,
    config: configfile.ConfigFile | None = None,
    data_dir: str | None,
    bind_address: str,
    secure_port: int,
    control_plane_endpoint: Sequence[str],
    advertise_address: str,
    service_cluster_ip_range: str,
    apiserver_cert_extra_sans: Sequence[str],
    tls_cert_file: str,
    tls_private_key_file: str,
    root_ca_file: str,
    storage: str,
    authorization_mode: str,
    anonymous_auth: bool,
    anonymous_requests_per_second: float,
    audit_log_path: str | None,
    audit_policy_file: str,
    audit_log_maxsize: int,
    audit_log_maxbackup: int,
    audit_log_maxage: int,
    shutdown_delay_duration: timedelta,
    disable_http2_serving: bool,
    **authentication: Any,
) -> ServerConfig:
    """The checked configuration that server flags mean; `authentication` are those of `authoptions` and
    `serviceaccountoptions`. Raises ConfigError."""
    service_accounts = serviceaccountoptions.take(authentication)
    root, addresses = Path(data_dir or default_data_dir()).absolute(), detected_addresses()
    local = {*addresses, advertise_address, bind_address, "127.0.0.1", "::1"}
    endpoints = listed(control_plane_endpoint) or published_before(root, local)
    return server_config(
        data_dir=str(root),
        bind_address=bind_address,
        secure_port=secure_port or free_port(bind_address),
        control_plane_endpoints=endpoints,
        detected_addresses=addresses,
        advertise_address=advertise_address,
        service_cluster_ip_range=service_cluster_ip_range,
        extra_sans=listed(apiserver_cert_extra_sans),
        tls_cert_file=tls_cert_file,
        tls_private_key_file=tls_private_key_file,
        root_ca_file=root_ca_file,
        storage=storage,
        authorization_mode=authorization_mode,
        anonymous_auth=anonymous_auth,
        anonymous_requests_per_second=anonymous_requests_per_second,
        audit_log_path=audit_log_path,
        audit_policy_file=audit_policy_file,
        audit_log_maxsize=audit_log_maxsize,
        audit_log_maxbackup=audit_log_maxbackup,
        audit_log_maxage=audit_log_maxage,
        shutdown_delay_duration=shutdown_delay_duration,
        disable_http2_serving=disable_http2_serving,
        authentication=authoptions.read(
            {
                **authentication,
                "anonymous_said": _said("anonymous_auth"),
                "authenticators": config.authenticators if config else (),
            }
        ),
        service_accounts=service_accounts,
    )


@contextmanager
def server_usage() -> Iterator[None]:
    """Report a wrong value as a usage error, with exit code 2, unless it stands in the file of `--config`."""
    try:
        yield
    except ConfigError as error:
        if _is_from_file(str(error)):
            raise
        raise click.UsageError(str(error)) from None


def _is_from_file(message: str) -> bool:
    """Whether an error is about a key of the file: the one it begins with, else any whose value it repeats."""
    context = click.get_current_context()
    read = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is click.core.ParameterSource.DEFAULT_MAP
    }
    key = message.partition(":")[0].replace("-", "_")
    if key in context.params:
        return key in read
    return any(isinstance(value, str) and value and value in message for value in read.values())


def _said(name: str) -> bool:
    """Whether the value of this flag is not its default."""
    context = click.get_current_context(silent=True)
    source = context and context.get_parameter_source(name)
    return source not in (None, click.core.ParameterSource.DEFAULT)


def first_token_options(function: Callable[P, R]) -> Callable[P, R]:
    """Add the flags about the token of the first start."""
    flags = (
        click.option(
            "--token", default=None, metavar="TOKEN", envvar="MOORING_TOKEN", show_envvar=True,
            help='Token to create; "" creates none. [default: a fresh one on the first start, none later]',
        ),
        click.option("--token-ttl", type=DURATION, default="24h0m0s", show_default=True,
                     help="How long the token lives; 0 means for ever."),
        click.option("--skip-token-print", is_flag=True, help="Print <value withheld> instead of the token."),
    )  # fmt: skip
    for add in reversed(flags):
        function = add(function)
    return function


def kubeconfig_option(function: Callable[P, R]) -> Callable[P, R]:
    """Add `--kubeconfig` and `--context`."""
    function = click.option(
        "--context", "context_name", default="", metavar="NAME", help="Context to use. [default: the current one]"
    )(function)
    return click.option(
        "--kubeconfig",
        default="",
        metavar="FILE",
        help="Kubeconfig of the cluster. [default: $KUBECONFIG, ~/.kube/config, /etc/kubernetes/admin.conf, "
        "admin.conf of the data directory; the first that is there]",
    )(function)


def output_option(*formats: str) -> Decorator[..., Any]:
    """Add `-o`."""
    return click.option(
        "-o", "--output", "output", type=click.Choice(formats), default=formats[0], show_default=True,
        help="Form of the output.",
    )  # fmt: skip
