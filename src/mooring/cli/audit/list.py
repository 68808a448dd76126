"""`mooring audit list`: list the certificates that were issued, with what obtained them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from mooring.api.mooring.lineagerecord import entries_of
from mooring.apimachinery.schema import Obj
from mooring.cli.audit.records import fetch_records
from mooring.cli.cluster import ChosenCluster, cluster_options
from mooring.cli.options.client import LISTED, output_option
from mooring.cli.options.flags import NODE, TOKEN
from mooring.cli.printing import output as printing
from mooring.cli.printing.output import echo
from mooring.cli.valuecompletion import complete_node, complete_token

COLUMNS = {"TIME": "time", "SUBJECT": "subject", "TOKEN": "token", "SOURCE": "sourceAddress"}
WIDE = {"SERIAL": "serialNumber", "REQUESTER": "requester", "EXPIRES": "notAfter"}
"""Columns, each with the field of an entry."""


@click.command("list")
@click.option(
    "--token",
    "token_id",
    type=TOKEN,
    default="",
    metavar="ID",
    help="Only certificates that were requested with this token.",
    shell_complete=complete_token,
)
@click.option(
    "--node",
    type=NODE,
    default="",
    metavar="NAME",
    help="Only client certificates of this node.",
    shell_complete=complete_node,
)
@click.option("--serial", default="", metavar="HEX", help="Only the certificate with this serial number.")
@output_option(*LISTED)
@cluster_options
def list_entries(token_id: str, node: str, serial: str, output: str, chosen: ChosenCluster) -> None:
    """List the certificates that were issued.

    `mooring audit verify` says whether the list can be trusted.
    """
    records = chosen.run(lambda client: fetch_records(client, chosen.clock, chosen.timeout))
    wanted = {
        "token": token_id,
        "node": node,
        "serialNumber": serial.lower().replace(":", "").lstrip("0"),
    }
    print_list(list(_entries(records, {name: value for name, value in wanted.items() if value})), output)


def _entries(records: Iterable[Obj], wanted: Obj) -> Iterable[Obj]:
    for record in records:
        for entry in entries_of(record):
            if all(entry.get(name) == value for name, value in wanted.items()):
                yield {**entry, "record": record["metadata"]["name"]}


def print_list(entries: Sequence[Obj], form: str) -> None:
    """Print entries in one of the forms of a list."""
    if form in ("json", "yaml"):
        printing.print_document({"kind": "LineageEntryList", "items": list(entries)}, form)
    elif form == "name":
        echo(*(entry.get("serialNumber", "") for entry in entries))
    elif not entries:
        echo("No certificates found.", err=True)
    else:
        columns = COLUMNS | (WIDE if form == "wide" else {})
        printing.print_table(
            tuple(columns), [[entry.get(field) or "<none>" for field in columns.values()] for entry in entries]
        )
