"""`mooring machine remove`: withdraw the authorization of machines.

Rules kept here: a machine that has joined keeps its certificate; its Node is deleted, or its certificate revoked, to end that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import click

from mooring.api.mooring.authorizedmachine import PLURAL
from mooring.cli import cluster
from mooring.cli.cluster import ChosenCluster, ending_options
from mooring.cli.machine.authorize import QUALIFIED
from mooring.cli.options.client import SHOWN, output_option
from mooring.cli.options.flags import MACHINE
from mooring.cli.printing.deletions import printed_deletions
from mooring.cli.valuecompletion import complete_machine
from mooring.client.cluster import ClusterClient
from mooring.errors import NotFoundError


@click.command("remove")
@click.argument("name", nargs=-1, type=MACHINE, required=True, shell_complete=complete_machine)
@output_option(*SHOWN)
@ending_options
def remove(name: Sequence[str], output: str, chosen: ChosenCluster) -> None:
    """Withdraw the authorization of machines. Those that have joined keep their certificates."""

    async def work(client: ClusterClient) -> None:
        with printed_deletions(output) as report:
            for one in name:
                try:
                    await chosen.retry(partial(client.delete, PLURAL, one))
                except NotFoundError:
                    await _check_is_served(client)
                    raise
                report(f"{QUALIFIED}/{one}", f"{QUALIFIED}/{one} removed")

    chosen.run(work)


async def _check_is_served(client: ClusterClient) -> None:
    """Raise PeerError when the server does not serve the kind."""
    try:
        await client.list(PLURAL)
    except NotFoundError:
        raise await cluster.not_served(client, PLURAL) from None
