"""`mooring snapshot` and `mooring store verify`: copies of a store, and its verification."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from mooring.cli.options.flags import LISTED, READS_SERVER, REPORTED, output_option
from mooring.cli.options.server import snapshot_directory, snapshot_directory_options, storage_options, storage_settings
from mooring.cli.printing import echo, print_document, print_table, progress_bar
from mooring.cli.valuecompletion import complete_snapshot
from mooring.client.files import make_directory, open_file
from mooring.clock import Clock, SystemClock
from mooring.controlplane.datadirectory import only_server
from mooring.controlplane.snapshots import ON_DEMAND, SUFFIX, entries, list_snapshots, snapshot_path
from mooring.controlplane.snapshots import save as save_file
from mooring.controlplane.snapshots import verify as verify_snapshot
from mooring.errors import ConfigError, StorageError
from mooring.settings.storage import StorageSettings
from mooring.storage import drivers
from mooring.storage.copying import Copied, copy
from mooring.storage.restores import record_restore
from mooring.storage.snapshot import MAGIC, Summary
from mooring.storage.sqlite.verification import HEADER, Damage, verify_file

# `mooring store verify`: read all of a database and of snapshots, and name what is damaged.
#
# Rules kept here: nothing is changed, and a running server is not disturbed. Keys of objects are printed, values are not. The
# exit code is 1 when anything is damaged.

DATABASE, SNAPSHOT = "database", "snapshot"
DAMAGED_EXIT = 1


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """Result for one file."""

    path: Path
    type: str
    records: int
    unverified: int
    damage: Sequence[Damage]


@click.command("verify")
@click.argument("path", metavar="[PATH]", required=False, default="")
@storage_options("snapshot_dir")
@output_option(*REPORTED)
def verify_store(path: str, output: str, **values: Any) -> None:
    """Read every record of a database or a snapshot, and name what is damaged.

    PATH is a data directory, whose snapshots are verified, too, or one file. Without PATH, the database and the snapshots of the
    configured server are verified. A server may run meanwhile. The exit code is 1 when something is damaged.
    """
    verified = [_verified(file) for file in (_files_at(Path(path)) if path else _configured(values))]
    damaged = [(one, damage) for one in verified for damage in one.damage]
    if output != "text":
        print_document({"kind": "StoreVerification", "files": [_document(one) for one in verified]}, output)
    else:
        if damaged:
            print_table(
                ("FILE", "KEY", "REVISION", "PROBLEM"),
                [
                    (one.path.name, damage.key or "-", str(damage.revision or "-"), damage.problem)
                    for one, damage in damaged
                ],
            )
        for one in verified:
            if not one.damage:
                suffix = f", {one.unverified} of them without a checksum" if one.unverified else ""
                echo(f"{one.path} is whole: {one.records} records{suffix}.")
    if damaged:
        names = ", ".join(str(one.path) for one in verified if one.damage)
        echo(f"Damaged: {names}. Restore the last whole snapshot, or delete the objects that cannot be read.", err=True)
        raise click.exceptions.Exit(DAMAGED_EXIT)


def _configured(values: dict[str, Any]) -> list[Path]:
    settings = storage_settings(values)
    scheme, _, rest = settings.storage_url.partition(":")
    if scheme != "sqlite":
        raise ConfigError(f"storage: {scheme}: verifies its data itself; name a snapshot or a database file")
    return [Path(rest), *_snapshots(snapshot_directory(values))]


def _files_at(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = [file for file in (path / "mooring.db",) if file.exists()]
    found += [*_snapshots(path / "snapshots"), *_snapshots(path)]
    if not found:
        raise ConfigError(f"{path} has no database mooring.db and no snapshots; name a data directory or a file")
    return found


def _snapshots(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"*{SUFFIX}"))


def _verified(path: Path) -> VerifiedFile:
    with open_file(path) as file:
        start = file.read(len(HEADER))
    if not MAGIC.startswith(start):
        # An SQLite database, also one whose beginning is damaged: SQLite says so.
        report = verify_file(path)
        return VerifiedFile(path, DATABASE, report.records, report.unverified, report.damage)
    try:
        summary = verify_snapshot(path)
    except StorageError as error:
        return VerifiedFile(path, SNAPSHOT, 0, 0, (Damage("", 0, str(error)),))
    return VerifiedFile(path, SNAPSHOT, summary.entries, 0, ())


def _document(one: VerifiedFile) -> dict[str, Any]:
    return {
        "file": str(one.path),
        "type": one.type,
        "whole": not one.damage,
        "records": one.records,
        "unverified": one.unverified,
        "damage": [
            {"key": damage.key, "revision": damage.revision, "problem": damage.problem} for damage in one.damage
        ],
    }


# `mooring snapshot list`: list the snapshots of a directory.


@click.command("list")
@click.argument("directory", metavar="[DIR]", required=False, default="")
@snapshot_directory_options
@output_option(*LISTED)
def list_files(directory: str, output: str, **values: Any) -> None:
    """List the snapshots in DIR, by default the directory into which the server puts them.

    Only the heads of the files are read: see `mooring snapshot verify`.
    """
    path = Path(directory) if directory else snapshot_directory(values)
    # A server makes it for the first snapshot.
    is_unused = not directory and not path.exists() and path.parent.is_dir()
    if not directory and not path.exists() and not is_unused:
        raise ConfigError(f"{path} cannot be read: No such file or directory; check the path: {READS_SERVER}")
    found = [] if is_unused else list_snapshots(path)
    if output in ("json", "yaml"):
        documents: list[dict[str, Any]] = [
            {
                "file": str(one.path),
                "bytes": one.size,
                **(
                    {"revision": one.header.revision, "time": one.header.time}
                    if one.header
                    else {"problem": one.problem}
                ),
            }
            for one in found
        ]
        print_document({"snapshots": documents}, output)
        return
    if output == "name":
        for one in found:
            echo(str(one.path))
        return
    if not found:
        echo(f"no snapshots in {path}", err=True)
        return
    is_wide = output == "wide"
    rows = []
    for one in found:
        revision, time = (str(one.header.revision), one.header.time) if one.header else ("", "")
        rows.append((one.path.name, revision, str(one.size), one.problem, *((time,) if is_wide else ())))
    print_table(("NAME", "REVISION", "BYTES", "PROBLEM", *(("TIME",) if is_wide else ())), rows)


# `mooring snapshot save`: save the cluster of a store to a file, beside a running server or without one.


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
    drivers.check_existence(settings.storage_url)
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
    storage = drivers.open_storage(settings.storage_url, clock, settings=settings)
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


# `mooring snapshot verify`: verify that snapshots are whole.


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
    summary = verify_snapshot(path)
    if digest not in ("", summary.digest):
        raise ConfigError(f"{path} is another snapshot: its digest is {summary.digest}")
    return summary


# `mooring snapshot restore`: restore a snapshot into an empty store.

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
    target = drivers.open_storage(settings.storage_url, clock, settings=settings)
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
