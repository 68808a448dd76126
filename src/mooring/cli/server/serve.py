"""`mooring server` and `mooring up`: a control plane that stays until it is told to stop.

Rules kept here: `up` is `init` if needed and then `server`, in one start: the token is made through the running plane, and the
join line is printed when it works. The log goes to stderr, the join line to stdout.
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

from mooring.authz import table as authz
from mooring.cli.options.flags import usage
from mooring.cli.options.server import first_token_options, server_configuration, server_options, server_usage
from mooring.cli.printing import logs
from mooring.cli.server.firsttoken import FirstToken, establish, print_how_to_go_on
from mooring.clock import SystemClock
from mooring.plane.assemble import Plane
from mooring.plane.configuration import ServerConfig
from mooring.plane.supervise import serve
from mooring.server.audit.log import read_policy
from mooring.settings.audit import AuditSettings
from mooring.settings.authorization import AuthorizationSettings
from mooring.settings.storage import StorageSettings
from mooring.storage.table import open_storage

log = logging.getLogger("mooring")


@click.command("server")
@server_options
@click.option("-v", "--verbose", count=True, help="Log more; twice for everything.")
def server(verbose: int, **flags: Any) -> None:
    """Serve a control plane until SIGTERM or SIGINT.

    Keys and first objects are made when they are missing, but no token: see `mooring init` and `mooring up`.
    """
    config = _checked(flags)
    logs.configure(verbose)
    serve(config)


@click.command("up")
@server_options
@first_token_options
@click.option("-v", "--verbose", count=True, help="Log more; twice for everything.")
def up(token: str | None, token_ttl: timedelta, skip_token_print: bool, verbose: int, **flags: Any) -> None:
    """Serve a control plane; on the first start make keys, first objects and a token before.

    Prints the line that lets a machine join, and how to administrate. Later starts make no token unless --token is given.
    """
    wish = FirstToken(text=token, ttl=token_ttl, withheld=skip_token_print)
    with usage():
        wish.check(SystemClock())
    config = _checked(flags)
    logs.configure(verbose)
    # the kubeconfig is written last of all keys; what memory held is gone, so every start is its first
    first = not (Path(config.data_dir) / "admin.conf").exists() or config[StorageSettings].storage_url.startswith(
        "memory:"
    )
    serve(config, _greeting(config, wish, first))


def _checked(flags: dict[str, Any]) -> ServerConfig:
    with server_usage():
        config = server_configuration(**flags)
        authz.build(
            config[AuthorizationSettings].authorization_mode
        )  # what is wrong with these is told here, before anything is made
        open_storage(config[StorageSettings].storage_url, SystemClock())
    read_policy(config[AuditSettings].audit_policy_file)
    return config


def _greeting(config: ServerConfig, wish: FirstToken, first: bool) -> Callable[[Plane], None]:
    tasks: set[asyncio.Task[None]] = set()

    async def greet(plane: Plane) -> None:
        token = wish.chosen(first)
        if token is not None:
            await establish(plane.registry, SystemClock(), plane.first_boot, token, wish.ttl)
        print_how_to_go_on(config, plane.serving_ca_pem, token, wish)
        sys.stdout.flush()

    def done(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("no token was made: %s", task.exception())

    def on_ready(plane: Plane) -> None:
        task = asyncio.get_running_loop().create_task(greet(plane), name="first token")
        tasks.add(task)  # the loop itself keeps no reference
        task.add_done_callback(done)

    return on_ready
