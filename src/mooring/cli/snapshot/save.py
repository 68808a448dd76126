"""`mooring snapshot save`: save the cluster of a store to a file, beside a running server or without one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from mooring.cli.options.client import REPORTED, output_option
from mooring.cli.options.storage import snapshot_directory, storage_options, storage_settings
from mooring.cli.printing.output import echo, print_document
from mooring.client.files import make_directory
from mooring.clock import Clock, SystemClock
from mooring.plane.snapshots.directory import ON_DEMAND, snapshot_path
from mooring.plane.snapshots.file import save as save_file
from mooring.settings.storage import StorageSettings
from mooring.storage import table
from mooring.storage.snapshot import Summary


@click.command("save")
@click.argument("file", metavar="[FILE]", required=False, default="")
@storage_options("snapshot_dir", "snapshot_compress")
@output_option(*REPORTED)
def save(file: str, output: str, snapshot_compress: bool, **values: Any) -> None:
    """Save every object at one revision to FILE, which a running server does not notice.

    Without FILE the snapshot is put into --snapshot-dir, under a name with the time. The keys in the data directory are not part of
    it: back up the directory pki as well.
    """
    if file == "-":
        raise click.UsageError("a snapshot is not written to standard output: name a file")
    clock = SystemClock()
    settings = storage_settings(values)
    directory = snapshot_directory(values)
    path = Path(file) if file else snapshot_path(directory, ON_DEMAND, clock.now())
    table.check_existence(settings.storage_url)
    if not file:
        make_directory(directory)
    summary = asyncio.run(_save(settings, path, clock, compressed=snapshot_compress))
    size = path.stat().st_size
    if output != "text":
        print_document({"kind": "Snapshot", **document(path, summary, size)}, output)
        return
    echo(
        f"{summary.entries} entries at revision {summary.header.revision} were saved to {path} ({size} bytes).",
        f"Digest: {summary.digest}",
    )
    echo("The keys in the directory pki of the servers are not part of it: back them up as well.", err=True)


async def _save(settings: StorageSettings, path: Path, clock: Clock, *, compressed: bool) -> Summary:
    storage = table.open_storage(settings.storage_url, clock, settings=settings)
    await storage.open()
    try:
        return await save_file(storage, path, clock, compressed=compressed)
    finally:
        await storage.close()


def document(path: Path, summary: Summary, size: int) -> dict[str, Any]:
    """Return a snapshot as a document."""
    return {
        "file": str(path),
        "revision": summary.header.revision,
        "time": summary.header.time,
        "entries": summary.entries,
        "bytes": size,
        "digest": summary.digest,
    }
