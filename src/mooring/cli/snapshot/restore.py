"""`mooring snapshot restore`: restore a snapshot into an empty store."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from mooring.cli.options.client import REPORTED, output_option
from mooring.cli.options.storage import storage_options, storage_settings
from mooring.cli.printing.output import echo, print_document
from mooring.cli.printing.progressbar import progress_bar
from mooring.cli.snapshot.verify import verified
from mooring.cli.valuecompletion import complete_snapshot
from mooring.clock import Clock, SystemClock
from mooring.plane.files.datadirectory import only_server
from mooring.plane.snapshots.file import entries
from mooring.settings.storage import StorageSettings
from mooring.storage import table
from mooring.storage.copying import Copied, copy
from mooring.storage.restores import record_restore
from mooring.storage.snapshot import Summary

REVISION_STEP = 1_000_000_000
"""Revisions between the snapshot and the first write after it. The cluster may have gone on after the snapshot, and no client may
see a revision that it knows with another meaning: a thousand writes in a second take eleven days to get there (etcd's documentation
recommends the same number)."""
COMMAND = "snapshot restore"


@click.command("restore")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path), shell_complete=complete_snapshot)
@storage_options()
@click.option("--digest", default="", metavar="DIGEST", help="Digest that `mooring snapshot save` printed.")
@output_option(*REPORTED)
def restore(file: Path, digest: str, output: str, **values: Any) -> None:
    """Verify the snapshot FILE, and restore it into a store that is empty: a new database file, or an etcd without objects.

    Stop every server first. When the command is interrupted, run it again: until it ends, no server starts on the store. Clients
    notice the restore and list everything again. The keys in the data directory have to be those of the time of the snapshot.
    """
    clock = SystemClock()
    settings = storage_settings(values)
    summary = verified(file, digest)
    with _without_server(settings):
        copied = asyncio.run(_restore(file, summary, settings, clock))
    if output != "text":
        document = {
            "kind": "SnapshotRestore",
            "file": str(file),
            "snapshotRevision": summary.header.revision,
            "snapshotDigest": summary.digest,
            "entries": copied.entries,
            "digest": copied.digest,
            "revision": copied.revision,
            "resumed": copied.resumed,
        }
        print_document(document, output)
        return
    echo(
        f"{copied.entries} entries of {summary.header.time} were restored, and compared with the snapshot.",
        f"The store goes on at revision {copied.revision}: clients list everything again.",
    )


@contextmanager
def _without_server(settings: StorageSettings) -> Iterator[None]:
    """Hold the data directory of a store that is in it. Raises ConfigError while a server runs from it: it may have open the
    database whose file was deleted, and would go on with that."""
    with ExitStack() as stack:
        if settings.is_in_data_dir:
            stack.enter_context(only_server(Path(settings.data_dir)))
        yield


async def _restore(path: Path, summary: Summary, settings: StorageSettings, clock: Clock) -> Copied:
    target = table.open_storage(settings.storage_url, clock, settings=settings)
    await target.open()
    floor = summary.header.revision + REVISION_STEP
    try:
        with progress_bar(summary.entries) as report:
            return await copy(
                lambda: entries(path),
                target,
                floor=floor,
                command=COMMAND,
                identity=secrets.token_hex(8),
                report=report,
                confirm=lambda: record_restore(target, summary.header.revision, floor),
            )
    finally:
        await target.close()
