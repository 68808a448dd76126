"""`mooring store verify`: read all of a database and of snapshots, and name what is damaged.

Rules kept here: nothing is changed, and a running server is not disturbed. Keys of objects are printed, values are not. The exit
code is 1 when anything is damaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from mooring.cli.options.flags import REPORTED, output_option
from mooring.cli.options.server import snapshot_directory, storage_options, storage_settings
from mooring.cli.printing.output import echo, print_document, print_table
from mooring.client.files import open_file
from mooring.errors import ConfigError, StorageError
from mooring.plane.snapshots import SUFFIX
from mooring.plane.snapshots import verify as verify_snapshot
from mooring.storage.snapshot import MAGIC
from mooring.storage.sqlite.verification import HEADER, Damage, verify_file

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
def verify(path: str, output: str, **values: Any) -> None:
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
        # an SQLite database, also one whose beginning is damaged: SQLite says so
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
