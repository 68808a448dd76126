"""`mooring node delete`: delete Nodes, which ends the membership of their machines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import click

from mooring.api.mooring.membership import NODES
from mooring.cli.certs import inventory
from mooring.cli.cluster import ChosenCluster, ending_options
from mooring.cli.options.client import SHOWN, output_option
from mooring.cli.options.flags import NODE
from mooring.cli.printing.deletions import printed_deletions
from mooring.cli.printing.output import echo
from mooring.cli.valuecompletion import complete_node
from mooring.client.cluster import ClusterClient
from mooring.errors import ConfigError, NotFoundError


@click.command("delete")
@click.argument("name", nargs=-1, type=NODE, required=True, shell_complete=complete_node)
@output_option(*SHOWN)
@ending_options
def delete(name: Sequence[str], output: str, chosen: ChosenCluster) -> None:
    """Delete Nodes. With a Mooring server this ends the membership of their machines: their certificates are refused at once.

    A server with --node-deletion=reregisters, and another Kubernetes API server, go on accepting the certificates. The first
    refuses them after mooring certs revoke --node.
    """

    async def work(client: ClusterClient) -> str:
        with printed_deletions(output) as report:
            for one in name:
                try:
                    await chosen.retry(partial(client.delete, NODES, one))
                except NotFoundError:
                    revoke = f"mooring certs revoke --node {one}"
                    raise ConfigError(
                        f'there is no Node "{one}"; if a machine of this name never registered one, run {revoke}'
                    ) from None
                report(f"node/{one}", f"node/{one} deleted")
        return await inventory.unenforced(client)

    if unenforced := chosen.run(work):
        echo(f"warning: {unenforced}.", err=True)
