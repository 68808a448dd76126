"""`mooring ca rollover abort`: go back to the old CA."""

from __future__ import annotations

from datetime import timedelta

import click

from mooring.api.mooring.certificateauthorityrollover import ABORTED
from mooring.apimachinery.schema import Obj
from mooring.cli.ca.rollover import request
from mooring.cli.cluster import ChosenCluster
from mooring.client.cluster import ClusterClient


@click.command("abort")
@click.option(
    "--force",
    is_flag=True,
    help="Do not wait for machines with a certificate of the new CA: they have to join again. Nothing else is passed over.",
)
@click.option(
    "--compromised",
    is_flag=True,
    help="The key of the new CA is in other hands: neither CA vouches for the other any more.",
)
@request.request_options
def abort(force: bool, compromised: bool, wait: timedelta, output: str, chosen: ChosenCluster) -> None:
    """Go back to the old CA. This is possible until the old CA is retired.

    The new CA stays trusted until machines have replaced the certificates that it issued.
    """

    async def work(client: ClusterClient) -> Obj:
        rollover = await request.read(client, chosen)
        return await request.ask(client, rollover, ABORTED, force=force, compromised=compromised)

    request.run(chosen, output, work, wait)
