"""`mooring node show`: show what a cluster knows of a machine."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from mooring.cli.cluster import ChosenCluster, cluster_options
from mooring.cli.node import machines
from mooring.cli.node.machines import KnownMachine
from mooring.cli.options.client import SHOWN, output_option
from mooring.cli.options.flags import NODE
from mooring.cli.printing import output as printed
from mooring.cli.printing.output import echo
from mooring.cli.valuecompletion import complete_node
from mooring.errors import ConfigError


@click.command("show")
@click.argument("name", nargs=-1, type=NODE, required=True, shell_complete=complete_node)
@output_option(*SHOWN)
@cluster_options
def show(name: Sequence[str], output: str, chosen: ChosenCluster) -> None:
    """Show machines: their state, addresses, and certificates."""
    now = chosen.clock.now()
    found, _ = chosen.run_with_retries(lambda client: machines.fetch(client, now))
    known = {one.name: one for one in found}
    if missing := [one for one in name if one not in known]:
        raise ConfigError(f'there is no machine "{missing[0]}" in this cluster: mooring node list --all lists them')
    wanted = [known[one] for one in dict.fromkeys(name)]
    if output in ("json", "yaml"):
        items = [one.document() for one in wanted]
        document = items[0] if len(items) == 1 else {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}
        printed.print_document(document, output)
        return
    for number, one in enumerate(wanted):
        if output == "name":
            echo(f"node/{one.name}")
            continue
        if number:
            echo()
        echo(*_lines(one, now))


def _lines(one: KnownMachine, now: datetime) -> list[str]:
    found = one.document()
    labelled = [
        ("Name", one.name),
        ("State", f"{one.state}: {message}" if (message := found.get("message")) else one.state),
        ("Addresses", ", ".join(one.addresses)),
        ("Created", f"{one.created}, {machines.age(one.created, now)} ago" if one.created else ""),
        ("Node uid", found.get("nodeUID", "")),
        ("Token", found.get("token", "")),
        ("Asked from", found.get("from", "")),
        *(
            (
                "Certificate",
                f"{known.serial_number}, {known.state}{f' ({known.reason})' if known.reason else ''}, ends "
                f"{known.expires or '<unknown>'}, {known.user}",
            )
            for known in one.certificates
        ),
    ]
    return [f"{label + ':':<14}{value}" for label, value in labelled if value]
