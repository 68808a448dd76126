"""`mooring server` and `mooring up`: a control plane that serves until a signal stops it.

Rules kept here: `up` is `init` if needed and then `server`, in one start. The token is created through the running server, so that
the join line works when it is printed. The log goes to stderr, the join line to stdout.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from mooring.cli import serverlogs
from mooring.cli.options.declared import RepeatableCommand, read_again
from mooring.cli.options.flags import usage
from mooring.cli.options.server import server_configuration, server_options, server_usage
from mooring.cli.server.init import FirstTokenFlags, Serving, accepts_tokens, first_token_options, print_next_steps
from mooring.clock import SystemClock
from mooring.controlplane.assemble import Assembly
from mooring.controlplane.configuration import ServerConfig
from mooring.controlplane.lifecycle import RunningServer
from mooring.controlplane.parts.foundation import check_names
from mooring.controlplane.publishing.firstboot import create_first_token
from mooring.controlplane.serverprocess import serve
from mooring.controlplane.sharedkeys.joining import joined_configuration
from mooring.server.audit.auditevent import read_policy
from mooring.settings.network import NetworkSettings
from mooring.settings.serving import AuditSettings
from mooring.settings.storage import StorageSettings

log = logging.getLogger("mooring")

NOT_SETTINGS = frozenset({"verbose", "log_format", "token", "token_ttl", "skip_token_print"})
"""Flags of one start, which a restart of the workers does not use."""


@click.command("server", cls=RepeatableCommand)
@server_options
@click.option(
    "-t",
    "--token",
    default="",
    metavar="TOKEN",
    help="Server token, as --server-token: for k3s's command line, beside --server.",
)
@serverlogs.log_options
def server(token: str, verbose: int, log_format: str, **flags: Any) -> None:
    """Serve a control plane until SIGTERM or SIGINT.

    Keys and first objects are made when they are missing, but no bootstrap token: see `mooring init` and `mooring up`. With
    --server and the server token it becomes a server of the cluster there.
    """
    serverlogs.configure(verbose, log_format)
    config = _checked_configuration(_with_token(flags, token))
    serve(config, read_config=_config_reader(config))


@click.command("up", cls=RepeatableCommand)
@server_options
@first_token_options
@serverlogs.log_options
def up(
    token: str | None, token_ttl: timedelta, skip_token_print: bool, verbose: int, log_format: str, **flags: Any
) -> None:
    """Serve a control plane; on the first start make keys, first objects and a token before.

    Prints the line that lets a machine join, and how to administrate. Later starts make no token unless --token is given.
    """
    token_flags = FirstTokenFlags(text=token, ttl=token_ttl, withheld=skip_token_print)
    with usage():
        token_flags.check(SystemClock())
    config = _checked_configuration(flags)
    with usage():
        token_flags.check_accepted(config)
    serverlogs.configure(verbose, log_format)
    # admin.conf is the last file that the key store creates; a store in memory makes every start a first one
    is_first = not (Path(config.data_dir) / "admin.conf").exists() or config[StorageSettings].in_memory
    serve(config, _create_token_when_ready(config, token_flags, is_first), _config_reader(config))


def _with_token(flags: dict[str, Any], token: str) -> dict[str, Any]:
    """Return the flags with `--token` as the server token. Raises UsageError for two of them."""
    if not token:
        return flags
    if flags["server_token"]:
        raise click.UsageError("give --token or --server-token, not both")
    return {**flags, "server_token": token}


def _config_reader(config: ServerConfig) -> Callable[[], ServerConfig]:
    """Return a function that reads the flags and the configuration file of this command again. It raises MooringError."""
    ctx = click.get_current_context()

    def read() -> ServerConfig:
        with read_again(ctx) as values:
            flags = {name: values[name] for name in ctx.params if name not in NOT_SETTINGS}
            if ctx.command.name == "server":
                flags = _with_token(flags, values["token"])
            # Any free port: the one that was chosen stays.
            if not flags["secure_port"]:
                flags["secure_port"] = config[NetworkSettings].secure_port
            return _checked_configuration(flags)

    return read


def _checked_configuration(flags: dict[str, Any]) -> ServerConfig:
    """Return the configuration, checked as far as it can be before any file is created. Raises UsageError, ConfigError."""
    with server_usage():
        config = server_configuration(**flags)
        check_names(config, SystemClock())
    # Read and dropped: a mistake in it is an error before any file is created.
    read_policy(config[AuditSettings].audit_policy_file)
    return joined_configuration(config, flags["server_token"], SystemClock())


def _create_token_when_ready(
    config: ServerConfig, token_flags: FirstTokenFlags, is_first: bool
) -> Callable[[RunningServer], None]:
    """Return a callback for a server that is ready, which creates the token and prints the join line."""
    tasks: set[asyncio.Task[None]] = set()

    async def create_token(assembly: Assembly) -> None:
        token = token_flags.token(is_first and accepts_tokens(config))
        if token is not None:
            await create_first_token(
                assembly.base.parts.registry, SystemClock(), assembly.upkeep.first_boot, token, token_flags.ttl
            )
        serving = Serving(assembly.trust.serving.chain, assembly.trust.serving.root_ca.pem)
        print_next_steps(config, serving, token, token_flags)
        # Programs that start this one read the join line from a pipe.
        sys.stdout.flush()

    def log_failure(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("no token was made: %s", task.exception())

    def on_ready(running: RunningServer) -> None:
        task = asyncio.get_running_loop().create_task(create_token(running.assembly), name="first token")
        # The event loop itself keeps no reference.
        tasks.add(task)
        task.add_done_callback(log_failure)

    return on_ready
