"""`mooring machine list`: list the machines that may join, and those that have."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from mooring.api.mooring.authorizedmachine import KIND, PLURAL
from mooring.apimachinery.schema import Obj
from mooring.cli import cluster
from mooring.cli.cluster import ChosenCluster, cluster_options
from mooring.cli.machine.authorize import QUALIFIED
from mooring.cli.options.client import LISTED, output_option
from mooring.cli.printing import output as printed
from mooring.cli.printing.output import echo
from mooring.client.cluster import ClusterClient
from mooring.errors import NotFoundError


@click.command("list")
@output_option(*LISTED)
@cluster_options
def list_machines(output: str, chosen: ChosenCluster) -> None:
    """List authorized machines."""

    async def fetch(client: ClusterClient) -> Sequence[Obj]:
        try:
            return (await client.list(PLURAL)).items
        except NotFoundError:
            raise await cluster.not_served(client, PLURAL) from None

    print_list(chosen.run_with_retries(fetch), output, chosen.clock.now())


def print_list(found: Sequence[Obj], form: str, now: datetime) -> None:
    """Print machines in one of the forms of a list."""
    if form in ("json", "yaml"):
        printed.print_document({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": list(found)}, form)
    elif form == "name":
        for obj in found:
            echo(f"{QUALIFIED}/{obj['metadata']['name']}")
    elif not found:
        echo("No authorized machines found.", err=True)
    else:
        columns = [column for column in KIND.resource.columns if form == "wide" or not column.priority]
        rows = [[str(column.cell(obj, now)) for column in columns] for obj in found]
        printed.print_table([column.name.upper() for column in columns], rows)
