"""Record of the agent: what it remembers, and a file that cannot be read."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from mooring.agent.disk import AgentRecord, RecordFile


@pytest.fixture
def record(tmp_path: Path) -> RecordFile:
    return RecordFile(tmp_path / "var/lib/mooring/agent.json")


def test_entries_are_kept_beside_each_other_and_unknown_ones_stay(record: RecordFile) -> None:
    record.write("expirationSeconds", 86_400)
    entries = json.loads(record.path.read_bytes())
    record.path.write_text(json.dumps(entries | {"ofALaterVersion": 1}))
    record.write("nodeUID", "u")
    record.write("hooksDone", {"client": "sha256:0"})
    record.write("nodeIP", ["192.0.2.7", "2001:db8::7"])
    assert record.read() == AgentRecord(86_400, ("192.0.2.7", "2001:db8::7"), "u", {"client": "sha256:0"})
    assert json.loads(record.path.read_bytes())["ofALaterVersion"] == 1
    assert stat.S_IMODE(record.path.stat().st_mode) == 0o600


def test_an_entry_that_does_not_change_is_not_written(record: RecordFile) -> None:
    record.write("nodeUID", "u")
    inode = record.path.stat().st_ino
    record.write("nodeUID", "u")
    assert record.path.stat().st_ino == inode


@pytest.mark.parametrize("content", [b"", b"\xff", b"[1]", b'{"nodeUID": 1}', b"[" * 5000, b" " * (65 << 10)])
def test_a_file_that_cannot_be_read_is_an_empty_record(record: RecordFile, content: bytes) -> None:
    record.write("nodeUID", "u")
    record.path.write_bytes(content)
    assert record.read() == AgentRecord()
