"""`mooring certs list`: list the client certificates that the cluster knows, with their state.

Rules kept here:
* Known are the certificates of nodes (NodeIdentity) and those on the denylist. Certificates of users that are not revoked are
  recorded nowhere.
* A machine that has a serving certificate for a name of an API server is a warning, for a user who may read what tells it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import click

from mooring.cli.certs import inventory, servingnames
from mooring.cli.certs.inventory import STATES, Inventory, KnownCertificate
from mooring.cli.cluster import ChosenCluster, cluster_options
from mooring.cli.options.client import output_option
from mooring.cli.printing import output
from mooring.cli.printing.output import echo
from mooring.client.cluster import ClusterClient
from mooring.clock import human_duration, parse_rfc3339

HEADERS = ("NODE", "SERIAL", "EXPIRES", "STATE", "REASON")
WIDE = ("USER", "PUBLIC KEY", "REVOKED BY")


@click.command("list")
@click.option("--node", default="", metavar="NAME", help="Only certificates of this node.")
@click.option("--state", type=click.Choice(STATES), help="Only certificates in this state.")
@output_option("table", "wide", "json", "yaml", "name")
@cluster_options
def list_certificates(node: str, state: str | None, output: str, chosen: ChosenCluster) -> None:
    """List the client certificates of nodes, and those that are revoked."""
    now = chosen.clock.now()

    async def fetch(client: ClusterClient) -> tuple[Inventory, Sequence[str]]:
        known = await chosen.retry(lambda: inventory.fetch(client))
        return known, await chosen.retry(lambda: servingnames.warnings(client, known, now))

    known, warnings = chosen.run(fetch)
    found = [
        one
        for one in known.certificates(now)
        if (not node or one.node == node) and (state is None or one.state == state)
    ]
    for warning in (*([known.warning] if known.warning else ()), *warnings):
        echo(f"warning: {warning}", err=True)
    _print_list(found, output, now)


def _print_list(found: Sequence[KnownCertificate], form: str, now: datetime) -> None:
    if form in ("json", "yaml"):
        items = [one.document() for one in found]
        output.print_document({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}, form)
    elif form == "name":
        for one in found:
            echo(one.serial_number)
    elif not found:
        echo("No certificates found.", err=True)
    else:
        wide = form == "wide"
        rows = [(*_cells(one, now), *((one.user, one.public_key, one.revoked_by) if wide else ())) for one in found]
        output.print_table((*HEADERS, *(WIDE if wide else ())), rows)


def _cells(one: KnownCertificate, now: datetime) -> tuple[str, ...]:
    return one.node or "<unknown>", one.serial_number, _expiry(one.expires, now), one.state, one.reason or "<none>"


def _expiry(text: str, now: datetime) -> str:
    if not text:
        return "<unknown>"
    left = parse_rfc3339(text) - now
    return f"in {human_duration(left)}" if left > timedelta(0) else f"{human_duration(-left)} ago"
