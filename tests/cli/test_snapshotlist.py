"""`mooring snapshot list`: directories without snapshots, and those that are missing."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.commandline import CommandLine, mooring

__all__ = ["mooring"]


def test_a_server_that_made_no_snapshot_has_none(mooring: CommandLine, tmp_path: Path) -> None:
    outcome = mooring("snapshot", "list", "--data-dir", str(tmp_path))
    assert (outcome.code, outcome.out, outcome.err) == (0, "", f"no snapshots in {tmp_path / 'snapshots'}\n")
    assert json.loads(mooring.done("snapshot", "list", "--data-dir", str(tmp_path), "-o", "json")) == {"snapshots": []}
    (tmp_path / "empty").mkdir()
    assert mooring("snapshot", "list", str(tmp_path / "empty")).err == f"no snapshots in {tmp_path / 'empty'}\n"


def test_a_wrong_path_is_an_error_and_no_empty_list(mooring: CommandLine, tmp_path: Path) -> None:
    for arguments in (("--data-dir", str(tmp_path / "wrong")), (str(tmp_path / "wrong"),)):
        outcome = mooring("snapshot", "list", *arguments)
        assert outcome.code == 1
        assert "cannot be read: No such file or directory; check the path" in outcome.err


def test_a_file_that_is_no_snapshot_is_listed_with_the_reason(mooring: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "x.snapshot"
    file.write_bytes(b"nothing")
    header, row = mooring.done("snapshot", "list", str(tmp_path)).splitlines()
    assert header.split() == ["NAME", "REVISION", "BYTES", "PROBLEM"]
    assert row.startswith("x.snapshot")
    assert mooring.done("snapshot", "list", str(tmp_path), "-o", "wide").split()[:5][-1] == "TIME"
    assert mooring.done("snapshot", "list", str(tmp_path), "-o", "name") == f"{file}\n"
