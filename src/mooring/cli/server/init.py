"""`mooring init`: the first boot, without serving.

Source: docs/protocol/kubeadm-init.md; kubeadm init.

Rules kept here: running it again changes nothing that is right and never makes a second CA. Objects go through the registry like
everybody's (law 6), so that it works beside a running server too. What was made is told, file by file.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from mooring.api.kinds import BY_PLURAL
from mooring.authz import table as authz
from mooring.authz.attributes import Attributes
from mooring.authz.chain import authorize
from mooring.authz.decision import Decision
from mooring.cli.options.configfile import ConfigFile
from mooring.cli.options.server import first_token_options, server_configuration, server_options, server_usage
from mooring.cli.printing.output import echo
from mooring.cli.server.firsttoken import FirstToken, establish, print_how_to_go_on
from mooring.clock import Clock, SystemClock
from mooring.errors import ConfigError
from mooring.plane.configuration import ServerConfig
from mooring.plane.firstboot import FirstBoot
from mooring.plane.material import Material, prepare
from mooring.plane.servicerange import keep as keep_service_range
from mooring.registry.admission import table as admission
from mooring.registry.store import Registry
from mooring.settings.authorization import AuthorizationSettings
from mooring.settings.network import NetworkSettings
from mooring.settings.storage import StorageSettings
from mooring.storage.table import open_storage
from mooring.trust.bootstraptoken.token import BootstrapToken
from mooring.trust.discovery import clusterinfo


@click.command("init")
@server_options
@first_token_options
def init(token: str | None, token_ttl: timedelta, skip_token_print: bool, **flags: Any) -> None:
    """Make a new control plane: CA, keys, admin kubeconfig, the first objects and a token.

    Running it again repairs what is missing, keeps what is there, never overwrites a CA, and makes no second token unless
    --token is given.
    """
    clock = SystemClock()
    wish = FirstToken(text=token, ttl=token_ttl, withheld=skip_token_print)
    with server_usage():
        wish.check(clock)
        config = server_configuration(**flags)
        if config[StorageSettings].storage_url.startswith("memory:"):
            raise ConfigError("storage: memory: forgets everything when init ends; use mooring up with it")
        authz.build(
            config[AuthorizationSettings].authorization_mode
        )  # this and the storage are refused before anything is made
        open_storage(config[StorageSettings].storage_url, clock)
    prepared = prepare(config, clock.now(), secrets.token_bytes)
    made = asyncio.run(_first_boot(config, prepared.material, clock, wish))
    if prepared.made:
        echo(f"Made in {config.data_dir}:")
        for path in prepared.made:
            echo(f"  {Path(path).relative_to(config.data_dir)}")
    else:
        echo(f"The keys and certificates in {config.data_dir} are kept as they are.")
    file: ConfigFile | None = flags["config"]
    with_what = f"--config {file.path}" if file else f"--data-dir {config.data_dir}"
    echo("To serve, with the same flags:", f"  mooring server {with_what}")
    print_how_to_go_on(config, prepared.material.serving_ca_pem, made, wish)


async def _first_boot(
    config: ServerConfig, material: Material, clock: Clock, wish: FirstToken
) -> BootstrapToken | None:
    async with AsyncExitStack() as stack:
        storage = open_storage(config[StorageSettings].storage_url, clock)
        await storage.open()
        stack.push_async_callback(storage.close)
        authorizers = authz.build(config[AuthorizationSettings].authorization_mode)

        def decide(attributes: Attributes) -> Decision:
            return authorize(attributes, authorizers, registry.views)

        await keep_service_range(
            storage, config[NetworkSettings].service_cluster_ip_range, clock.now(), secrets.token_bytes
        )
        plugins = admission.build(services=config[NetworkSettings].service_cluster_ip_range)
        registry = Registry(storage, tuple(BY_PLURAL.values()), clock, secrets.token_bytes, plugins, decide)
        await registry.start()
        stack.push_async_callback(registry.stop)
        first = registry.views["configmaps"].get(clusterinfo.NAME, clusterinfo.NAMESPACE) is None
        first_boot = FirstBoot(registry, clock, config, material.serving_ca_pem, material.client_ca_pem)
        await first_boot.run()
        token = wish.chosen(first)
        if token is not None:
            await establish(registry, clock, first_boot, token, wish.ttl)
        return token
