"""`mooring ends list`: list the ends that wait to be settled."""

from __future__ import annotations

from datetime import timedelta

import click

from mooring.cli import cluster
from mooring.cli.ends.stored import REMEDIES, fetch, kind_of, waiting
from mooring.cli.options.client import kubeconfig_option, output_option
from mooring.cli.printing.output import echo, print_document, print_table
from mooring.clock import SystemClock


@click.command("list")
@output_option("table", "json", "yaml", "name")
@kubeconfig_option
@cluster.timeout_option
def list_ends(output: str, kubeconfig: str, context_name: str, timeout: timedelta) -> None:
    """List what the store would bring back: deleted tokens and Nodes, and other ends that a server remembers.

    Revocations are not listed: the servers have made them again.

    While the list is not empty, the servers serve and issue nothing.
    """
    clock = SystemClock()
    chosen = cluster.selected(kubeconfig, context_name)
    found = waiting(cluster.run(chosen, clock, lambda client: cluster.retry(lambda: fetch(client), clock, timeout)))
    if output in ("json", "yaml"):
        print_document({"kind": "Ends", "items": [{"key": key, **value} for key, value in found.items()]}, output)
    elif output == "name":
        for key in found:
            echo(key)
    elif not found:
        echo("No end waits to be settled.", err=True)
    else:
        print_table(["END", "REMEDY"], [[key, REMEDIES.get(kind_of(key), "waive")] for key in found])
