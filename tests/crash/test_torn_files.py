"""Files that a killed writer left, and their repair by the next one (`mooring.client.files`, `mooring.server.audit.logfile`)."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mooring.client import files
from mooring.client.files import TEMPORARY, make_directory, write_atomic
from mooring.server.audit.logfile import AuditLog
from mooring.server.audit.rotatedfile import Calls

WRITER = """
import os, signal, sys
from pathlib import Path
from mooring.client.files import write_atomic
setattr(os, sys.argv[2], lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL))
write_atomic(Path(sys.argv[1]), b"new")
"""


def temporaries(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.name.endswith(TEMPORARY)]


@pytest.mark.crash
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_the_next_write_to_a_directory_removes_what_a_killed_one_left(tmp_path: Path, call: str) -> None:
    path = tmp_path / "admin.conf"
    path.write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", WRITER, str(path), call], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    (left,) = temporaries(tmp_path)
    assert left.stat().st_mode & 0o777 == 0o600
    write_atomic(tmp_path / "another", b"text")
    assert temporaries(tmp_path) == []
    assert path.read_bytes() == b"old"


def test_a_file_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / f".admin.conf.0123456789ab{TEMPORARY}"
    with other.open("wb") as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        write_atomic(tmp_path / "another", b"text")
        assert temporaries(tmp_path) == [other]


def test_files_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    link = tmp_path / f".link{TEMPORARY}"
    link.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(b"kept")
    (tmp_path / ".admin.conf.swp").write_bytes(b"kept")
    write_atomic(tmp_path / "another", b"text")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".admin.conf.swp", link.name, "another", "elsewhere"]


def test_a_writer_whose_file_was_taken_for_abandoned_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    lost: list[Path] = []

    def too_late(descriptor: int, operation: int) -> None:
        if not lost:
            lost.extend(temporaries(tmp_path))
            lost[0].unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", too_late)
    write_atomic(tmp_path / "admin.conf", b"text")
    assert (tmp_path / "admin.conf").read_bytes() == b"text"
    assert len(lost) == 1
    assert temporaries(tmp_path) == []


def test_every_directory_that_is_made_is_durable_in_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_directory", synced.append)
    make_directory(tmp_path / "etc/kubernetes/pki")
    assert sorted(synced) == [tmp_path, tmp_path / "etc", tmp_path / "etc/kubernetes"]
    make_directory(tmp_path / "etc/kubernetes/pki")
    assert len(synced) == 3


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(b'{"a":1}\n{"b', b'{"a":1}\n{"b\n{"c":2}\n', id="a torn line is ended, so that the next record is whole"),
        pytest.param(b'{"a":1}\n', b'{"a":1}\n{"c":2}\n', id="a whole line stays as it is"),
        pytest.param(b"", b'{"c":2}\n', id="a new file begins with a record"),
    ],
)  # fmt: skip
def test_the_audit_log_goes_on_after_a_crash(tmp_path: Path, found: bytes, expected: bytes) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(found)

    async def record() -> None:
        audit = AuditLog(str(path))
        audit.start()
        audit.record({"c": 2})
        await audit.stop()

    asyncio.run(record())
    assert path.read_bytes() == expected


def test_an_audit_log_that_cannot_be_read_can_still_be_written(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b"{}")

    class WriteOnly(Calls):
        def open(self, path: str, flags: int) -> int:
            if flags & os.O_ACCMODE == os.O_RDWR:
                raise PermissionError
            return super().open(path, flags)

    async def record() -> None:
        audit = AuditLog(str(path), calls=WriteOnly())
        audit.start()
        audit.record({"c": 2})
        await audit.stop()

    asyncio.run(record())
    assert path.read_bytes() == b'{}{"c":2}\n'
