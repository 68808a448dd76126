"""`mooring ends waive`: let come back what a restored store brought back.

Rules kept here: what was waived is kept in the ConfigMap, so that no other server that remembers it asks again.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from mooring.api.mooring.ends import WAIVED
from mooring.cli.cluster import ChosenCluster, ending_options
from mooring.cli.ends.stored import change, fetch_waiting, selected
from mooring.cli.printing.output import echo
from mooring.client.cluster import ClusterClient


@click.command("waive")
@click.argument("end", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Waive every end that waits.")
@ending_options
def waive(end: tuple[str, ...], every: bool, chosen: ChosenCluster) -> None:
    """Let what the store brought back count again: deleted tokens and Nodes, and others. A revocation is deleted instead.

    Each END is one that `mooring ends list` prints.
    """
    for key in chosen.run(lambda client: _waive_all(client, end, every, chosen)):
        echo(f"{key} waived")


async def _waive_all(client: ClusterClient, keys: tuple[str, ...], every: bool, chosen: ChosenCluster) -> Sequence[str]:
    found = await chosen.retry(lambda: fetch_waiting(client))
    waived = selected(found, keys, every)

    def edit(data: dict[str, str]) -> None:
        for key in waived:
            if key in data:
                data[WAIVED + key] = data.pop(key)

    await chosen.retry(lambda: change(client, edit))
    return waived
