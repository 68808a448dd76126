"""`mooring audit verify`: verify the records of issued certificates.

Rules kept here: faults are printed on stderr, the first bad record by name, and the exit code is 1. The directory of a server adds
what is kept outside the store: `lineage.head`, and the key whose signatures are trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import click

from mooring.apimachinery.schema import Obj
from mooring.cli import cluster
from mooring.cli.audit.records import certificates_in, fetch_claims, fetch_records, fetch_requests
from mooring.cli.options.client import kubeconfig_option, output_option
from mooring.cli.options.flags import usage
from mooring.cli.printing.output import echo, print_document
from mooring.client.cluster import ClusterClient
from mooring.client.files import read_limited
from mooring.clock import SystemClock
from mooring.errors import ConfigError
from mooring.pki.errors import PkiError
from mooring.pki.keys import load_public_keys, public_key_fingerprint
from mooring.plane.background.lineagehead import FILE_NAME, read_heads
from mooring.trust.lineage.chain import Checkpoint, parse_checkpoint
from mooring.trust.lineage.verification import Fault, Verified, unrecorded
from mooring.trust.lineage.verification import verify as verify_records


@click.command("verify")
@click.option(
    "--data-dir",
    default="",
    metavar="DIR",
    help="Data directory of a server: its lineage.head is compared, and its pki/lineage.pub is trusted.",
)
@click.option(
    "--checkpoint",
    "given",
    multiple=True,
    metavar="HASH@NUMBER",
    help="What `mooring audit checkpoint` printed before; repeatable.",
)
@click.option(
    "--key", "key_files", multiple=True, metavar="FILE", help="Public key whose signatures are trusted; repeatable."
)
@output_option("text", "json", "yaml")
@kubeconfig_option
@cluster.timeout_option
@click.pass_context
def verify(
    ctx: click.Context,
    data_dir: str,
    given: Sequence[str],
    key_files: Sequence[str],
    output: str,
    kubeconfig: str,
    context_name: str,
    timeout: timedelta,
) -> None:
    """Verify that no record of an issued certificate was changed, cut or reordered.

    The exit code is 1 when a fault is found. A cut of the last records is found by the checkpoints of --data-dir and --checkpoint,
    and by certificates that exist without a record.
    """
    clock = SystemClock()
    with usage():
        checkpoints = [parse_checkpoint(text) for text in given]
    if data_dir:
        checkpoints += read_heads(Path(data_dir) / FILE_NAME)
    trusted = _trusted_keys([*key_files, *([str(Path(data_dir) / "pki/lineage.pub")] if data_dir else [])])

    async def fetch(client: ClusterClient) -> tuple[Verified, Sequence[Fault]]:
        requests = await fetch_requests(client, clock, timeout)
        records = await fetch_records(client, clock, timeout)
        verified = verify_records(records, checkpoints, trusted)
        since = str(verified.entries[0]["time"]) if verified.entries else ""
        if not verified.faults:
            verified.faults += unrecorded(verified.entries, certificates_in(requests, since))
        return verified, unrecorded(verified.entries, await fetch_claims(client, clock, timeout))

    verified, notices = cluster.run(cluster.selected(kubeconfig, context_name), clock, fetch)
    if output != "text":
        print_document(document(verified, notices), output)
    else:
        _print_text(verified, checkpoints, trusted)
        for notice in () if verified.faults else notices:
            echo(f"Warning: {notice.message}, or it was never issued", err=True)
    if verified.faults:
        ctx.exit(1)


def document(verified: Verified, notices: Sequence[Fault]) -> Obj:
    """Return the result as a document."""
    return {
        "kind": "LineageVerification",
        "verified": not verified.faults,
        "records": verified.records,
        "certificates": len(verified.entries),
        "head": str(verified.head) if verified.records else "",
        "signedBy": {signer or "nobody": count for signer, count in sorted(verified.signers.items())},
        "notices": [notice.message for notice in notices],
        "faults": [{"record": fault.record, "message": fault.message} for fault in verified.faults],
    }


def _print_text(verified: Verified, checkpoints: Sequence[Checkpoint], trusted: Sequence[str]) -> None:
    for fault in verified.faults:
        echo(f"Error: record {fault.record}: {fault.message}" if fault.record else f"Error: {fault.message}", err=True)
    if not verified.records:
        echo("No record is in order." if verified.faults else "There are no records.")
        return
    echo(f"{verified.records} records with {len(verified.entries)} certificates are in order, up to {verified.head}.")
    for signer, count in sorted(verified.signers.items()):
        echo(f"  {count} signed by {signer or 'no key'}")
    if not trusted:
        echo("Signatures were not compared with a key that you trust: give --data-dir or --key.", err=True)
    if not checkpoints:
        echo("Nothing outside the store was compared: give --data-dir or --checkpoint.", err=True)


def _trusted_keys(files: Sequence[str]) -> list[str]:
    """Return the fingerprints of the keys in the files. Raises ConfigError."""
    found: list[str] = []
    for file in files:
        try:
            found += [f"sha256:{public_key_fingerprint(key)}" for key in load_public_keys(read_limited(Path(file)))]
        except PkiError as error:
            raise ConfigError(f"{file}: {error}") from None
    return found
