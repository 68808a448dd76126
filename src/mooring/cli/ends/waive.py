"""`mooring ends waive`: let come back what a restored store brought back.

Rules kept here: what was waived is kept in the ConfigMap, so that no other server that remembers it asks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import click

from mooring.api.mooring.ends import WAIVED
from mooring.cli import cluster
from mooring.cli.ends.stored import change, fetch, selected, waiting
from mooring.cli.options.client import kubeconfig_option
from mooring.cli.printing.output import echo
from mooring.client.cluster import ClusterClient
from mooring.clock import Clock, SystemClock


@click.command("waive")
@click.argument("end", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Waive every end that waits.")
@kubeconfig_option
@cluster.timeout_option
def waive(end: tuple[str, ...], every: bool, kubeconfig: str, context_name: str, timeout: timedelta) -> None:
    """Let what the store brought back count again: deleted tokens and Nodes, and others. A revocation is deleted instead.

    Each END is one that `mooring ends list` prints.
    """
    clock = SystemClock()
    chosen = cluster.selected(kubeconfig, context_name)
    for key in cluster.run(chosen, clock, lambda client: _waive_all(client, end, every, clock, timeout)):
        echo(f"{key} waived")


async def _waive_all(
    client: ClusterClient, keys: tuple[str, ...], every: bool, clock: Clock, limit: timedelta
) -> Sequence[str]:
    found = waiting(await cluster.retry(lambda: fetch(client), clock, limit))
    chosen = selected(found, keys, every)

    def edit(data: dict[str, str]) -> None:
        for key in chosen:
            if key in data:
                data[WAIVED + key] = data.pop(key)

    await cluster.retry(lambda: change(client, edit), clock, limit)
    return chosen
