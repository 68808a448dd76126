"""`mooring machine remove`: withdraw the authorization of machines.

Rules kept here: a machine that has joined keeps its certificate; its Node is deleted, or its certificate revoked, to end that.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial

import click

from mooring.api.mooring.authorizedmachine import PLURAL
from mooring.cli import cluster
from mooring.cli.machine.authorize import QUALIFIED
from mooring.cli.options.client import kubeconfig_option
from mooring.cli.printing.output import echo
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock
from mooring.errors import NotFoundError


@click.command("remove")
@click.argument("name", nargs=-1, required=True)
@kubeconfig_option
@cluster.timeout_option
def remove(name: Sequence[str], kubeconfig: str, context_name: str, timeout: timedelta) -> None:
    """Withdraw the authorization of machines. Those that have joined keep their certificates."""
    clock = SystemClock()

    async def work(client: ClusterClient) -> None:
        for one in name:
            try:
                await cluster.retry(partial(client.delete, PLURAL, one), clock, timeout)
            except NotFoundError:
                await _check_is_served(client)
                raise
            echo(f"{QUALIFIED}/{one} removed")

    cluster.run(cluster.selected(kubeconfig, context_name), clock, work)


async def _check_is_served(client: ClusterClient) -> None:
    """Raise PeerError when the server does not serve the kind."""
    try:
        await client.list(PLURAL)
    except NotFoundError:
        raise await cluster.not_served(client, PLURAL) from None
