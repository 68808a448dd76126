"""`mooring snapshot verify`: verify that snapshots are whole."""

from __future__ import annotations

from pathlib import Path

import click

from mooring.cli.options.client import REPORTED, output_option
from mooring.cli.printing.output import echo, print_document
from mooring.cli.snapshot.save import document
from mooring.cli.valuecompletion import complete_snapshot
from mooring.errors import ConfigError
from mooring.plane.snapshots.file import verify as verify_file
from mooring.storage.snapshot import Summary


@click.command("verify")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path), shell_complete=complete_snapshot)
@click.option("--digest", default="", metavar="DIGEST", help="Digest that `mooring snapshot save` printed.")
@output_option(*REPORTED)
def verify(file: Path, digest: str, output: str) -> None:
    """Read the whole snapshot FILE, and verify every checksum in it.

    This finds damage. Someone who can write the file can make one that is whole: compare its digest with a copy kept elsewhere,
    by --digest.
    """
    summary = verified(file, digest)
    if output != "text":
        print_document({"kind": "Snapshot", **document(file, summary, file.stat().st_size)}, output)
        return
    echo(
        f"{file} is whole: {summary.entries} entries at revision {summary.header.revision}, of {summary.header.time}.",
        f"Digest: {summary.digest}",
    )


def verified(path: Path, digest: str) -> Summary:
    """Return what a whole snapshot contains. `digest`: the expected one, "" for any. Raises ConfigError, SnapshotError."""
    summary = verify_file(path)
    if digest not in ("", summary.digest):
        raise ConfigError(f"{path} is another snapshot: its digest is {summary.digest}")
    return summary
