"""The lock of a data directory: who has it, who waits, who is refused, and how long it is held."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mooring.controlplane.datadirectory import DRAIN_SECONDS, FILE, LOCK_LOOK_SECONDS, only_server
from mooring.controlplane.keystore import exclusive
from mooring.errors import ConfigError

HOLD = """
import os, sys, time
from pathlib import Path
from mooring.controlplane.datadirectory import only_server
with only_server(Path(sys.argv[1])):
    worker = os.fork() if sys.argv[2] == "workers" else 0
    if sys.argv[2] == "workers" and not worker:
        sys.stdin.read()  # a worker drains until it is told
        os._exit(0)
    print(worker, flush=True)
    time.sleep(60)
"""


class Holder:
    """A process that holds the lock, and perhaps a worker of it."""

    def __init__(self, root: Path, workers: bool = False) -> None:
        command = [sys.executable, "-c", HOLD, str(root), "workers" if workers else "alone"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.worker = int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end_worker(self) -> None:
        os.kill(self.worker, signal.SIGKILL)

    def close(self) -> None:
        """End both."""
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    found = Holder(tmp_path)
    yield found
    found.close()


@pytest.fixture
def with_worker(tmp_path: Path) -> Iterator[Holder]:
    found = Holder(tmp_path, workers=True)
    found.kill()
    yield found
    found.close()


def test_a_directory_in_use_is_refused_at_once_with_the_process_and_what_to_do(holder: Holder, tmp_path: Path) -> None:
    pauses: list[float] = []
    with pytest.raises(ConfigError) as refused, only_server(tmp_path, pauses.append):
        pass
    assert str(refused.value) == (
        f"{tmp_path} is used by the process {holder.process.pid}, a server or a command that changes it; stop that first, or "
        "choose another directory with --data-dir"
    )
    assert pauses == []


def test_the_end_of_the_process_frees_it_even_by_sigkill(holder: Holder, tmp_path: Path) -> None:
    holder.kill()
    with only_server(tmp_path):
        assert int((tmp_path / FILE).read_text()) == os.getpid()
    with only_server(tmp_path):
        pass
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_the_workers_of_a_killed_parent_hold_it_until_they_have_drained(
    with_worker: Holder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            with_worker.end_worker()
        if len(pauses) >= 3:
            subprocess.run(["sleep", "0.05"], check=True)

    with only_server(tmp_path, pause):
        assert len(pauses) >= 3
    assert caplog.text.count("its workers are draining") == 1


def test_workers_that_never_end_are_not_waited_for(with_worker: Holder, tmp_path: Path) -> None:
    pauses: list[float] = []
    with pytest.raises(ConfigError, match="is used by the process"), only_server(tmp_path, pauses.append):
        pass
    assert len(pauses) == pytest.approx(DRAIN_SECONDS / LOCK_LOOK_SECONDS, abs=2)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
@pytest.mark.parametrize("lock", [only_server, exclusive], ids=["of a server", "of single writes"])
def test_a_file_system_without_locks_is_refused_with_what_to_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    lock: Callable[[Path], AbstractContextManager[None]],
) -> None:
    def refused(descriptor: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refused)
    problem = re.escape(os.strerror(code).lower())
    with pytest.raises(ConfigError, match=f"cannot be locked: {problem}; use a file system with locks"), lock(tmp_path):
        pass


def test_a_lock_without_a_number_is_another_process(holder: Holder, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("")
    with pytest.raises(ConfigError, match="is used by another process"), only_server(tmp_path):
        pass
