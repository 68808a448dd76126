"""`mooring secrets-encryption status`: show the servers' files, and which keys have encrypted how many values."""

from __future__ import annotations

import click

from mooring.cli.cluster import ChosenCluster, cluster_options
from mooring.cli.options.client import REPORTED, output_option
from mooring.cli.printing import output as printed
from mooring.cli.printing.output import echo
from mooring.cli.secretsencryption import report
from mooring.client.cluster import ClusterClient


@click.command("status")
@output_option(*REPORTED)
@cluster_options
def status(output: str, chosen: ChosenCluster) -> None:
    """Show which file each server uses, and which provider and key wrote how many values of each resource.

    A value is stale when another key than the first one has written it. `mooring secrets-encryption rotate` writes it again.
    """

    async def overview(client: ClusterClient) -> report.EncryptionOverview:
        await report.check_server(client)
        return await report.fetch(client, chosen.clock.now())

    found = chosen.run_with_retries(overview)
    if output in ("json", "yaml"):
        servers = [
            {"server": server, "configHash": config_hash, "automaticReload": reloads == "yes"}
            for server, config_hash, reloads in report.server_rows(found)
        ]
        printed.print_document({"servers": servers, "resources": list(found.resources)}, output)
        return
    if found.servers:
        printed.print_table(("SERVER", "FILE", "RELOADS"), report.server_rows(found))
        echo("")
    if not found.resources:
        echo("No resource is encrypted: give servers --encryption-provider-config.", err=True)
        return
    printed.print_table(("RESOURCE", "WRITES WITH", "VALUES", "STATE"), report.resource_rows(found))
