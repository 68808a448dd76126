"""`make steady` that is ended half-way leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.polling import eventually

ROOT = Path(__file__).parents[1]


def is_running(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_ends_the_loops_and_the_tests_and_removes_the_files(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "tests.steady", "-n", "1", "-k", "sleeps", "tests/test_sleeps.py"]
    output = tmp_path / "output"
    folder = tmp_path / "temporary"
    folder.mkdir()
    with output.open("wb") as stdout:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=stdout,
            stderr=stdout,
            env={**os.environ, "TMPDIR": str(folder)},
            start_new_session=True,
        )
    eventually(lambda: "bringing up nodes" in output.read_text())
    process.send_signal(number)
    assert process.wait(60) == 128 + number, output.read_text()
    eventually(lambda: not is_running(process.pid))
    assert list(folder.glob("mooring-steady-*")) == []
