"""`mooring audit checkpoint`: print the end of the chain, to be kept elsewhere."""

from __future__ import annotations

import click

from mooring.cli.audit.records import fetch_records, require_whole
from mooring.cli.cluster import ChosenCluster, cluster_options
from mooring.cli.options.client import REPORTED, output_option
from mooring.cli.printing.output import echo, print_document
from mooring.errors import ConfigError
from mooring.trust.lineage import verify


@click.command("checkpoint")
@output_option(*REPORTED)
@cluster_options
def checkpoint(output: str, chosen: ChosenCluster) -> None:
    """Print the end of the chain of records, after verifying it.

    Keep the line where an attacker with the database cannot change it. `mooring audit verify --checkpoint` then finds every change
    of the records up to here.
    """
    verified = verify(chosen.run(lambda client: fetch_records(client, chosen.clock, chosen.timeout)))
    require_whole(verified)
    if not verified.records:
        raise ConfigError(
            "there are no records yet: the first certificate that the controllers sign makes the first one"
        )
    head = verified.head
    if output == "text":
        echo(str(head))
    else:
        print_document({"checkpoint": str(head), "hash": head.hash, "sequence": head.sequence}, output)
