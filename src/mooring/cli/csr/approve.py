"""`mooring csr approve`: approve certificate signing requests."""

from __future__ import annotations

import click

from mooring.cli.cluster import ChosenCluster
from mooring.cli.csr.decision import CsrDecision, checked_reason, decide_all, decision_options
from mooring.cli.csr.selection import RequestSelection, selection_options
from mooring.cli.options.flags import not_empty
from mooring.trust.discovery.pins import PinError, parse_pin


@click.command("approve")
@selection_options
@click.option(
    "--fingerprint",
    default="",
    callback=not_empty,
    metavar="sha256:HEX",
    help="Approve only a request for this key; needs exactly one NAME.",
)
@decision_options(
    "Approved with mooring csr approve.", "Approve a request that would fail, and write one again that is approved."
)
def approve(
    selection: RequestSelection,
    fingerprint: str,
    message: str,
    reason: str,
    force: bool,
    dry_run: bool,
    output: str,
    chosen: ChosenCluster,
) -> None:
    """Approve certificate signing requests, so that the signer issues the certificates.

    Check a request first with mooring csr show NAME, or decide one after the other with mooring csr review.
    """
    if fingerprint and len(selection.names) != 1:
        raise click.UsageError("--fingerprint needs exactly one NAME")
    try:
        wanted = str(parse_pin(fingerprint)) if fingerprint else ""
    except PinError:
        raise click.UsageError(
            "--fingerprint must be sha256: and 64 hexadecimal digits, as `mooring csr show` prints it"
        ) from None
    decision = CsrDecision(
        condition="Approved",
        message=message,
        reason=checked_reason(reason),
        force=force,
        dry_run=dry_run,
        fingerprint=wanted,
    )
    decide_all(selection, decision, output, chosen)
