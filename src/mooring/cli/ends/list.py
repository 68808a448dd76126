"""`mooring ends list`: list the ends that wait to be settled."""

from __future__ import annotations

import click

from mooring.cli.cluster import ChosenCluster, cluster_options
from mooring.cli.ends.stored import REMEDIES, fetch_waiting, kind_of
from mooring.cli.options.client import LISTED, output_option
from mooring.cli.printing.output import echo, print_document, print_table


@click.command("list")
@output_option(*LISTED)
@cluster_options
def list_ends(output: str, chosen: ChosenCluster) -> None:
    """List what the store would bring back: deleted tokens and Nodes, and other ends that a server remembers.

    Revocations are not listed: the servers have made them again.

    While the list is not empty, the servers serve and issue nothing.
    """
    found = chosen.run_with_retries(fetch_waiting)
    if output in ("json", "yaml"):
        print_document({"kind": "Ends", "items": [{"key": key, **value} for key, value in found.items()]}, output)
    elif output == "name":
        for key in found:
            echo(key)
    elif not found:
        echo("No end waits to be settled.", err=True)
    else:
        print_table(["END", "REMEDY"], [[key, REMEDIES.get(kind_of(key), "waive")] for key in found])
