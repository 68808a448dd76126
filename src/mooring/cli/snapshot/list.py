"""`mooring snapshot list`: list the snapshots of a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mooring.cli.options.client import LISTED, output_option
from mooring.cli.options.machine import READS_SERVER
from mooring.cli.options.storage import snapshot_directory, snapshot_directory_options
from mooring.cli.printing.output import echo, print_document, print_table
from mooring.errors import ConfigError
from mooring.plane.snapshots.directory import list_snapshots


@click.command("list")
@click.argument("directory", metavar="[DIR]", required=False, default="")
@snapshot_directory_options
@output_option(*LISTED)
def list_files(directory: str, output: str, **values: Any) -> None:
    """List the snapshots in DIR, by default the directory into which the server puts them.

    Only the heads of the files are read: see `mooring snapshot verify`.
    """
    path = Path(directory) if directory else snapshot_directory(values)
    is_unused = not directory and not path.exists() and path.parent.is_dir()  # a server makes it for the first snapshot
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
