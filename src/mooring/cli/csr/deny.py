"""`mooring csr deny`: deny certificate signing requests."""

from __future__ import annotations

import click

from mooring.cli.cluster import ChosenCluster, cluster_options
from mooring.cli.csr.decision import CsrDecision, checked_reason, decide_all, reason_option
from mooring.cli.csr.selection import RequestSelection, selection_options
from mooring.cli.options.client import output_option


@click.command("deny")
@selection_options
@click.option(
    "--message",
    default="Denied with mooring csr deny.",
    show_default=True,
    help="Message of the condition, for people.",
)
@reason_option
@click.option("--force", is_flag=True, help="Write the request again when it is denied already.")
@click.option("--dry-run", is_flag=True, help="Let the server check the request without changing it.")
@output_option("text", "name", "json", "yaml")
@cluster_options
def deny(
    selection: RequestSelection,
    message: str,
    reason: str,
    force: bool,
    dry_run: bool,
    output: str,
    chosen: ChosenCluster,
) -> None:
    """Deny certificate signing requests, for good."""
    decision = CsrDecision(
        condition="Denied", message=message, reason=checked_reason(reason), force=force, dry_run=dry_run
    )
    decide_all(selection, decision, output, chosen)
