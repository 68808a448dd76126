"""`mooring csr approve`: approve certificate signing requests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import click

from mooring.cli import cluster
from mooring.cli.csr.decision import Decision, decide_all
from mooring.cli.options.client import kubeconfig_option, output_option
from mooring.trust.discovery.pins import PinError, parse_pin


@click.command("approve")
@click.argument("name", nargs=-1, required=True)
@click.option(
    "--fingerprint",
    default="",
    metavar="sha256:HEX",
    help="Approve only a request for this key; needs exactly one NAME.",
)
@click.option(
    "--message",
    default="Approved with mooring csr approve.",
    show_default=True,
    help="Message of the condition, for people.",
)
@click.option("--force", is_flag=True, help="Write the request again when it is approved already.")
@click.option("--dry-run", is_flag=True, help="Let the server check the request without changing it.")
@output_option("text", "name", "json", "yaml")
@kubeconfig_option
@cluster.timeout_option
def approve(
    name: Sequence[str],
    fingerprint: str,
    message: str,
    force: bool,
    dry_run: bool,
    output: str,
    kubeconfig: str,
    context_name: str,
    timeout: timedelta,
) -> None:
    """Approve certificate signing requests, so that the signer issues the certificates.

    Check a request first with mooring csr show NAME.
    """
    if fingerprint and len(name) != 1:
        raise click.UsageError("--fingerprint needs exactly one NAME")
    try:
        wanted = str(parse_pin(fingerprint)) if fingerprint else ""
    except PinError:
        raise click.UsageError(
            "--fingerprint must be sha256: and 64 hexadecimal digits, as `mooring csr show` prints it"
        ) from None
    decision = Decision(condition="Approved", message=message, force=force, dry_run=dry_run, fingerprint=wanted)
    decide_all(name, decision, output, kubeconfig, context_name, timeout)
