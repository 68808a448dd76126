"""Flags of the commands that start a server, and the defaults that depend on this machine.

- The flags follow from the settings in `mooring.plane.configuration.SUBJECTS`, with the names of kubeadm and kube-apiserver.
- State lives in /var/lib/mooring for root, else in the user's own data directory (XDG base directories).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from mooring.cli.options.configfile import ConfigFile, config_option
from mooring.cli.options.declared import settings_options
from mooring.cli.options.flags import DURATION, Decorator
from mooring.errors import ConfigError, MooringError
from mooring.plane.configuration import ServerConfig, declared_settings, server_config
from mooring.settings.addresses import DEFAULT_PORT
from mooring.settings.kinds import split_commas

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
    from mooring.trust.kubeconfig.text import parse_kubeconfig

    try:
        config = parse_kubeconfig(read_limited(data_dir / "admin.conf"))
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


def server_options(function: Callable[P, R]) -> Callable[P, R]:
    """Add every flag of a server; the command gets their values as keywords for `server_configuration`."""
    settings = declared_settings()
    return config_option(settings)(settings_options(settings)(function))


def server_configuration(*, config: ConfigFile | None = None, **values: Any) -> ServerConfig:
    """Return the checked configuration for the values of `server_options`. Raises ConfigError.

    Defaults that depend on this machine are found out here: the data directory, a free port, addresses.
    """
    root, addresses = Path(values["data_dir"] or default_data_dir()).absolute(), detected_addresses()
    bind_address = values["bind_address"]
    local = {*addresses, values["advertise_address"], bind_address, "127.0.0.1", "::1"}
    file_only = {one.field for one in declared_settings() if not one.flag}
    held_by_file = {name: value for name, value in (config.values if config else {}).items() if name in file_only}
    return server_config(
        **{
            **values,
            **held_by_file,
            "data_dir": str(root),
            "secure_port": values["secure_port"] or free_port(bind_address),
            "control_plane_endpoint": split_commas(values["control_plane_endpoint"]) or published_before(root, local),
        },
        detected_addresses=addresses,
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
