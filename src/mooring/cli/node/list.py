"""`mooring node list`: list the machines of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from mooring.api.meta.printcolumns import spec_of
from mooring.cli.cluster import ChosenCluster, cluster_options
from mooring.cli.node import machines
from mooring.cli.node.machines import ENDED, NEVER_REGISTERED, NO_NODE, STATES, KnownMachine
from mooring.cli.options.client import LISTED, output_option
from mooring.cli.printing import output as printed
from mooring.cli.printing.output import echo

HEADERS = ("NAME", "STATE", "CERTIFICATE ENDS", "TOKEN", "AGE")
WIDE = ("ADDRESSES", "FROM", "KEY")
_NONE = "<none>"


@click.command("list")
@click.option("--all", "-a", "show_all", is_flag=True, help="Also machines whose membership has ended.")
@click.option("--state", type=click.Choice(STATES), help="Only machines in this state.")
@output_option(*LISTED)
@cluster_options
def list_nodes(show_all: bool, state: str | None, output: str, chosen: ChosenCluster) -> None:
    """List the machines of a cluster: their state, and when their certificates end."""
    now = chosen.clock.now()
    found, _ = chosen.run_with_retries(lambda client: machines.fetch(client, now))
    wanted = [one for one in found if (one.state == state if state else show_all or one.state != ENDED)]
    if output in ("json", "yaml"):
        items = [one.document() for one in wanted]
        printed.print_document({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}, output)
    elif output == "name":
        for one in wanted:
            echo(f"node/{one.name}")
    elif not wanted:
        echo("No machines found.", err=True)
    else:
        print_table(wanted, now, is_wide=output == "wide")
        if any(one.state == NO_NODE for one in wanted):
            echo(f"{NO_NODE}: {NEVER_REGISTERED}.", err=True)


def print_table(found: Sequence[KnownMachine], now: datetime, *, is_wide: bool) -> None:
    """Print machines as a table."""
    rows = [(*_cells(one, now), *(_wide_cells(one) if is_wide else ())) for one in found]
    printed.print_table((*HEADERS, *(WIDE if is_wide else ())), rows)


def _cells(one: KnownMachine, now: datetime) -> tuple[str, ...]:
    certificate = one.certificate
    ends = machines.until(certificate.expires, now) if certificate is not None else _NONE
    token = spec_of(one.identity).get("token", "") if one.identity is not None else ""
    return one.name, one.state, ends, token or _NONE, machines.age(one.created, now)


def _wide_cells(one: KnownMachine) -> tuple[str, ...]:
    source = spec_of(one.identity).get("sourceAddress", "") if one.identity is not None else ""
    key = one.certificate.public_key if one.certificate is not None else ""
    return ",".join(one.addresses) or _NONE, source or _NONE, key or _NONE
