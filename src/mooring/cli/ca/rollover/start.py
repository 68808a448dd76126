"""`mooring ca rollover start`: make a new CA, and trust it beside the old one."""

from __future__ import annotations

from datetime import timedelta

import click

from mooring.api.mooring.certificateauthorityrollover import ENDED, KIND, SINGLETON, TRUST_BOTH, status_of
from mooring.apimachinery.schema import Obj
from mooring.cli.ca.rollover import request
from mooring.cli.cluster import ChosenCluster
from mooring.client.cluster import ClusterClient
from mooring.errors import ConfigError, NotFoundError


@click.command("start")
@click.option(
    "--compromised",
    is_flag=True,
    help="The key of the old CA is in other hands: keep nothing for the return of machines that are off.",
)
@request.request_options
def start(compromised: bool, wait: timedelta, output: str, chosen: ChosenCluster) -> None:
    """Make a new CA, and trust it beside the old one everywhere.

    Nothing is issued from the new CA yet. Each further phase needs mooring ca rollover advance.
    """

    async def work(client: ClusterClient) -> Obj:
        await request.check_server(client)
        try:
            found = await chosen.retry(lambda: client.get(request.PLURAL, SINGLETON))
        except NotFoundError:
            pass
        else:
            await _remove_ended(client, found)
        return await client.create(
            request.PLURAL,
            {
                "apiVersion": KIND.resource.api_version,
                "kind": KIND.resource.kind,
                "metadata": {"name": SINGLETON},
                "spec": {"phase": TRUST_BOTH, **({"compromised": True} if compromised else {})},
            },
        )

    request.run(chosen, output, work, wait)


async def _remove_ended(client: ClusterClient, found: Obj) -> None:
    phase = status_of(found).get("phase", "")
    if phase not in ENDED:
        raise ConfigError(
            f"a rollover is under way, it has reached {phase or 'nothing yet'}; see mooring ca rollover status"
        )
    await client.delete(request.PLURAL, SINGLETON, uid=found["metadata"]["uid"])
