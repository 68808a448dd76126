"""The audit log of several workers of one server: one file, whole lines, one rotation."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mooring.errors import ConfigError
from mooring.server.audit.logfile import AuditLog
from mooring.server.sharedmemory import TRIES, SharedMemory

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
"""Python 3.12 warns of forks beside threads, such as that of pytest-xdist. The children use none of their locks."""


def numbers(*paths: Path) -> list[int]:
    return [json.loads(line)["n"] for path in paths for line in path.read_text().splitlines()]


def with_workers(
    path: Path,
    body: Callable[[list[AuditLog]], Any],
    workers: int = 2,
    memory: SharedMemory | None = None,
    **options: Any,
) -> list[AuditLog]:
    """Run `body` with the started logs of the workers of one server."""
    memory = memory or SharedMemory(workers)
    logs = [AuditLog(str(path), share=memory.share_of(worker), **options) for worker in range(workers)]

    async def run() -> None:
        for log in logs:
            log.start()
        body(logs)
        for log in logs:
            await log.stop()

    asyncio.run(run())
    return logs


def write(log: AuditLog, number: int) -> None:
    log.record({"n": number})
    log.flush()


def test_workers_append_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"

    def body(logs: list[AuditLog]) -> None:
        for number in range(6):
            write(logs[number % 2], number)

    logs = with_workers(path, body)
    assert numbers(path) == list(range(6))
    assert [path.name for path in tmp_path.iterdir()] == ["audit.log"]
    assert [log.written for log in logs] == [3, 3]


def test_one_worker_rotates_and_the_others_follow(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def body(logs: list[AuditLog]) -> None:
        for number in range(9):
            write(logs[number % 2], number)

    with_workers(path, body, max_bytes=20, keep=9)
    files = [tmp_path / f"a.{number}" for number in (4, 3, 2, 1)]
    assert numbers(*files, path) == list(range(9))
    assert {len(file.read_text().splitlines()) for file in files} == {2}, "no file was rotated twice"
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in tmp_path.iterdir())


def test_a_file_that_the_operator_moved_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def body(logs: list[AuditLog]) -> None:
        write(logs[0], 0)
        path.rename(tmp_path / "moved")
        write(logs[1], 1)
        write(logs[0], 2)

    with_workers(path, body)
    assert (numbers(tmp_path / "moved"), numbers(path)) == ([0], [1, 2])


def test_refused_requests_of_all_workers_have_one_quarter_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def body(logs: list[AuditLog]) -> None:
        for number in range(20):
            logs[number % 2].record({"n": number}, refused=True)

    with_workers(path, body, max_bytes=400)
    assert 8 <= len(numbers(path)) <= 12
    assert sorted(numbers(path, tmp_path / "a-refused")) == list(range(20))


def test_two_servers_with_workers_write_two_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "audit.log"
    servers = [SharedMemory(2) for _ in range(2)]

    async def body() -> None:
        logs = [
            AuditLog(str(path), suffix=f"-{port}", share=memory.share_of(worker))
            for port, memory in enumerate(servers, 1)
            for worker in range(2)
        ]
        for log in logs:
            log.start()
        with pytest.raises(ConfigError, match="cannot be written"):
            AuditLog(str(path), suffix="-2").start()  # a server of one process
        for number, log in enumerate(logs):
            write(log, number)
        await logs[2].stop()
        replacement = AuditLog(str(path), suffix="-2", share=servers[1].share_of(0))
        replacement.start()
        write(replacement, 4)
        for log in (*logs, replacement):
            await log.stop()

    asyncio.run(body())
    assert numbers(path) == [0, 1]
    assert numbers(tmp_path / "audit-2.log") == [2, 3, 4]
    assert "another process writes" in caplog.text


def test_a_server_of_one_process_keeps_workers_of_another_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"

    async def body() -> None:
        single = AuditLog(str(path))
        single.start()
        worker = AuditLog(str(path), suffix="-2", share=SharedMemory(2).share_of(0))
        worker.start()
        write(single, 1)
        write(worker, 2)
        await single.stop()
        await worker.stop()

    asyncio.run(body())
    assert (numbers(path), numbers(tmp_path / "audit-2.log")) == ([1], [2])


def test_another_file_after_a_reload_is_proved_free_again(tmp_path: Path) -> None:
    memory = SharedMemory(1)

    async def body() -> None:
        for number, name in enumerate(("one", "two")):
            log = AuditLog(str(tmp_path / name), share=memory.share_of(0))
            log.start()
            write(log, number)
            await log.stop()

    asyncio.run(body())
    assert (numbers(tmp_path / "one"), numbers(tmp_path / "two")) == ([0], [1])


def test_a_pipe_or_a_device_is_never_rotated(tmp_path: Path) -> None:
    def body(logs: list[AuditLog]) -> None:
        for number in range(6):
            write(logs[number % 2], number)

    logs = with_workers(Path("/dev/null"), body, max_bytes=10)
    assert [log.written for log in logs] == [3, 3]


def test_workers_that_are_killed_while_they_write_leave_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    memory = SharedMemory(2)
    padding = "x" * 3000

    async def flood(worker: int) -> None:
        log = AuditLog(str(path), share=memory.share_of(worker), max_bytes=4 << 20, keep=50)
        log.start()
        while True:
            for number in range(100):
                log.append(json.dumps({"n": number, "padding": padding}).encode())
            log.flush()

    def size() -> int:
        total = 0
        for file in tmp_path.iterdir():
            with contextlib.suppress(FileNotFoundError):  # a worker has just renamed it
                total += file.stat().st_size
        return total

    for _ in range(3):
        before = size()
        children = []
        for worker in range(2):
            child = os.fork()
            if child == 0:
                try:
                    asyncio.run(flood(worker))
                finally:
                    os._exit(1)
            children.append(child)
        while size() < before + 3_000_000:
            os.sched_yield()
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    with_workers(path, lambda logs: write(logs[0], -1), memory=memory)
    lines = [line for file in tmp_path.iterdir() for line in file.read_bytes().splitlines()]
    torn = [line for line in lines if not line.endswith(b"}")]
    assert all(json.loads(line) for line in lines if line.endswith(b"}"))
    assert len(torn) <= 6, "at most one for each worker that was killed"


def test_a_worker_that_was_stopped_while_it_wrote_delays_the_others_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, memory = tmp_path / "a", SharedMemory(1)
    pauses: list[float] = []

    def body(logs: list[AuditLog]) -> None:
        ready, tell = os.pipe()
        child = os.fork()
        if child == 0:
            fcntl.lockf(memory.locks, fcntl.LOCK_EX)
            os.write(tell, b".")
            signal.pause()
        os.read(ready, 1)
        monkeypatch.setattr("mooring.server.sharedmemory.time.sleep", pauses.append)
        for number in range(3):
            write(logs[0], number)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for end in (ready, tell):
            os.close(end)
        write(logs[0], 3)

    with_workers(path, body, workers=1, memory=memory, max_bytes=20)
    assert len(pauses) == TRIES
    assert numbers(tmp_path / "a.1", path) == [0, 1, 2, 3], "the file was not rotated without the lock"
