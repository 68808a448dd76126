"""`mooring secrets-encryption status`: show the servers' files, and which keys have encrypted how many values."""

from __future__ import annotations

from datetime import timedelta

import click

from mooring.cli import cluster
from mooring.cli.options.client import kubeconfig_option, output_option
from mooring.cli.printing import output as printed
from mooring.cli.printing.output import echo
from mooring.cli.secretsencryption import report
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock


@click.command("status")
@output_option("table", "json", "yaml")
@kubeconfig_option
@cluster.timeout_option
def status(output: str, kubeconfig: str, context_name: str, timeout: timedelta) -> None:
    """Show which file each server uses, and which provider and key wrote how many values of each resource.

    A value is stale when another key than the first one has written it. `mooring secrets-encryption rotate` writes it again.
    """
    clock = SystemClock()

    async def work(client: ClusterClient) -> report.EncryptionOverview:
        return await cluster.retry(lambda: report.fetch(client, clock.now()), clock, timeout)

    found = cluster.run(cluster.selected(kubeconfig, context_name), clock, work)
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
