"""Shared memory of a database that a process uses (https://www.sqlite.org/walformat.html)."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mooring.storage.sqlite.openfiles import is_used

LOCKS = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_SH, 1, 128)
    print("locked", flush=True)
    sys.stdin.read()
"""
ASKS = """
import sys
from pathlib import Path
from mooring.storage.sqlite.openfiles import is_used
sys.exit(is_used(Path(sys.argv[1])))
"""


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    path = tmp_path / "mooring.db-shm"
    path.write_bytes(bytes(32768))
    return path


@contextmanager
def locked_by_another_process(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", LOCKS, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        yield process
        process.communicate()


def test_what_another_process_has_a_lock_on_is_used_until_it_ends(shared: Path) -> None:
    for _ in range(2):
        with locked_by_another_process(shared):
            assert is_used(shared)
        assert not is_used(shared)


def test_what_this_process_has_open_is_used_and_keeps_its_lock(shared: Path) -> None:
    assert not is_used(shared)
    with shared.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_SH, 1, 128)
        assert is_used(shared)
        assert subprocess.run([sys.executable, "-c", ASKS, str(shared)], check=False).returncode == 1
    assert not is_used(shared)


def test_what_a_killed_process_left_is_not_used(shared: Path) -> None:
    with locked_by_another_process(shared) as process:
        process.kill()
    assert not is_used(shared)


def test_what_is_missing_is_not_used(shared: Path) -> None:
    shared.unlink()
    assert not is_used(shared)


def test_what_cannot_be_found_out_counts_as_used(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    assert is_used(shared)


def test_on_another_system_it_counts_as_used(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert is_used(shared)
