"""Defaults of a server's settings that depend on this machine: data directory and a free port."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.core import ParameterSource

from mooring.client.files import home
from mooring.errors import ArgumentError, ConfigError
from mooring.listensockets import ListenError, bound_port, close_all, listen
from mooring.settings.addresses import DEFAULT_PORT


def default_data_dir() -> str:
    """Return /var/lib/mooring for root, else the user's own data directory (XDG base directories)."""
    if os.geteuid() == 0:
        return "/var/lib/mooring"
    base = os.environ.get("XDG_DATA_HOME", "")
    # the specification requires that relative paths are ignored
    root = Path(base) if base.startswith("/") else home() / ".local" / "share"
    return str(root / "mooring")


def data_directory(value: str) -> Path:
    """Return the data directory of `--data-dir`, by default that of this user. Raises ArgumentError for an empty flag.

    A variable that was meant to hold the directory would otherwise choose another cluster.
    """
    context = click.get_current_context(silent=True)
    if not value and context and context.get_parameter_source("data_dir") is ParameterSource.COMMANDLINE:
        raise ArgumentError("data-dir: the directory is not named; leave the flag out for the default")
    return Path(value or default_data_dir()).absolute()


READS_SERVER = "this command reads the data directory of a server, and no kubeconfig; give --data-dir"
"""End of the error of such a command without the directory."""


def server_directory(value: str) -> Path:
    """Return the data directory of a server on this machine, as `data_directory`. Raises ConfigError where there is none."""
    path = data_directory(value)
    if not path.is_dir():
        raise ConfigError(f"{path} is not there: {READS_SERVER}")
    return path


def free_port(address: str) -> int:
    """Return a TCP port that is free at an IP address now; DEFAULT_PORT when the address is not of this machine."""
    try:
        sockets = listen(address, 0)
    except ListenError:
        return DEFAULT_PORT  # the server fails to listen, with an error that names the address
    port = bound_port(sockets)
    close_all(sockets)
    return port
