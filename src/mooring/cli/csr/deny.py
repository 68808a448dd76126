"""`mooring csr deny`: deny certificate signing requests."""

from __future__ import annotations

import click

from mooring.cli.cluster import ChosenCluster
from mooring.cli.csr.decision import CsrDecision, checked_reason, decide_all, decision_options
from mooring.cli.csr.selection import RequestSelection, selection_options


@click.command("deny")
@selection_options
@decision_options("Denied with mooring csr deny.", "Write the request again when it is denied already.")
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
