"""What happens to the file of the audit log: moves, deletions, truncation, and each system call that fails.

The invariant of all tests: every record that was accepted is in one of the files exactly once, or is counted as dropped.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import stat
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.server.audit import logfile
from mooring.server.audit.logfile import AuditLog
from mooring.server.audit.rotatedfile import Calls
from mooring.server.sharedmemory import ALONE, SharedMemory
from mooring.settings.serving import AuditMode
from tests.support.auditlog import request_records
from tests.support.serverroom import Server, open_server

LINE = 8
"""Bytes of a record with a number of one digit, as the records of these tests have."""
ROTATING = LINE * 2
NAMES = ("open", "write", "rename", "unlink", "stat", "lstat", "fstat", "flock", "truncate", "read")


@dataclass
class Faults(Calls):
    """System calls of which some fail: `plan` has an errno for the n-th call of a name from now on, `always` for each."""

    plan: dict[tuple[str, int], int] = field(default_factory=dict)
    always: dict[str, int] = field(default_factory=dict)
    short: int | None = None
    """Bytes that the next write takes before it fails."""
    seen: Counter[str] = field(default_factory=Counter)
    failed: int = 0

    def arm(self, name: str, number: int, code: int) -> None:
        self.plan[name, self.seen[name] + number] = code

    def disarm(self) -> None:
        self.plan.clear()
        self.always.clear()
        self.short = None

    def _check(self, name: str) -> None:
        self.seen[name] += 1
        code = self.always.get(name) or self.plan.get((name, self.seen[name]))
        if code:
            self.failed += 1
            raise OSError(code, os.strerror(code))

    def open(self, path: str, flags: int) -> int:
        self._check("open")
        return super().open(path, flags)

    def fstat(self, descriptor: int) -> os.stat_result:
        self._check("fstat")
        return super().fstat(descriptor)

    def stat(self, path: str) -> os.stat_result:
        self._check("stat")
        return super().stat(path)

    def lstat(self, path: str) -> os.stat_result:
        self._check("lstat")
        return super().lstat(path)

    def flock(self, descriptor: int, operation: int) -> None:
        self._check("flock")
        super().flock(descriptor, operation)

    def write(self, descriptor: int, data: memoryview) -> int:
        if self.short is not None:
            taken, self.short = self.short, None
            self.always["write"] = errno.ENOSPC
            return super().write(descriptor, data[:taken]) if taken else self.write(descriptor, data)
        self._check("write")
        return super().write(descriptor, data)

    def read(self, descriptor: int, position: int) -> bytes:
        self._check("read")
        return super().read(descriptor, position)

    def truncate(self, descriptor: int, size: int) -> None:
        self._check("truncate")
        super().truncate(descriptor, size)

    def rename(self, source: str, target: str) -> None:
        self._check("rename")
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._check("unlink")
        super().unlink(path)


def numbers(*paths: Path) -> list[int]:
    """Return the numbers of whole records, in order; parts of a record are left out."""
    lines = [line for path in paths for line in path.read_bytes().split(b"\n")]
    return [json.loads(line)["n"] for line in lines if line.startswith(b"{") and line.endswith(b"}")]


def all_numbers(directory: Path) -> list[int]:
    return sorted(number for path in directory.iterdir() for number in numbers(path))


def write(log: AuditLog, *values: int) -> None:
    """Write each number now, as a batch of its own."""
    for number in values:
        log.record({"n": number})
        log.flush()


def with_log(path: Path, body: Callable[[AuditLog], Any], **options: Any) -> AuditLog:
    log = AuditLog(str(path), **options)

    async def run() -> None:
        log.start()
        body(log)
        await log.stop()

    asyncio.run(run())
    return log


# -- moves, deletions, truncation ------------------------------------------------------------------------------------


def test_after_a_move_the_next_record_begins_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def body(log: AuditLog) -> None:
        write(log, 0)
        path.rename(tmp_path / "moved")
        write(log, 1, 2)

    with_log(path, body)
    assert (numbers(tmp_path / "moved"), numbers(path)) == ([0], [1, 2])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_after_a_deletion_the_next_record_begins_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def body(log: AuditLog) -> None:
        write(log, 0)
        path.unlink()
        write(log, 1)

    assert with_log(path, body).dropped == 0
    assert numbers(path) == [1]


def test_another_file_at_the_path_is_appended_to_after_its_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def body(log: AuditLog) -> None:
        write(log, 0)
        path.rename(tmp_path / "moved")
        path.write_bytes(b'{"n":')
        write(log, 1)

    with_log(path, body)
    assert path.read_bytes() == b'{"n":\n{"n":1}\n'


def test_copytruncate_goes_on_at_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def body(log: AuditLog) -> None:
        write(log, 0, 1)
        (tmp_path / "copy").write_bytes(path.read_bytes())
        os.truncate(path, 0)
        write(log, 2, 3)

    with_log(path, body, max_bytes=ROTATING)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "copy"], "the empty file was not rotated"
    assert path.read_bytes() == b'{"n":2}\n{"n":3}\n'


def test_the_refused_part_begins_again_with_each_file(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def refused(log: AuditLog, number: int) -> None:
        log.record({"n": number}, refused=True)
        log.flush()

    def body(log: AuditLog) -> None:
        for number in range(4):  # a quarter of 64 bytes are two records
            refused(log, number)
        path.rename(tmp_path / "moved")
        write(log, 4)
        refused(log, 5)
        os.truncate(path, 0)
        write(log, 6)
        for number in (7, 8, 9):
            refused(log, number)

    with_log(path, body, max_bytes=64)
    assert numbers(tmp_path / "moved") == [0, 1]
    assert numbers(path) == [6, 7, 8]
    assert numbers(tmp_path / "a-refused") == [2, 3, 9]


def test_a_moved_file_is_written_while_the_path_cannot_be_created(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, calls = tmp_path / "a", Faults()

    def body(log: AuditLog) -> None:
        write(log, 0)
        path.rename(tmp_path / "moved")
        calls.always["open"] = errno.ENOSPC
        write(log, 1, 2)
        assert "a was moved and cannot be created again: no space left on device" in log.problem
        calls.disarm()
        write(log, 3)
        assert log.problem == ""

    assert with_log(path, body, calls=calls).dropped == 0
    assert (numbers(tmp_path / "moved"), numbers(path)) == ([0, 1, 2], [3])
    assert caplog.text.count("cannot be created again") == 1, "one line while it lasts"
    assert "records are written to" in caplog.text


def test_records_wait_while_a_deleted_file_cannot_be_created(tmp_path: Path) -> None:
    path, calls = tmp_path / "a", Faults()

    def body(log: AuditLog) -> None:
        write(log, 0)
        path.unlink()
        calls.always["open"] = errno.EACCES
        write(log, 1, 2)
        assert "cannot be written: permission denied" in log.problem
        calls.always.clear()
        calls.always["stat"] = errno.EIO
        write(log, 3)
        assert "it was deleted" in log.problem
        calls.disarm()
        write(log, 4)

    assert with_log(path, body, calls=calls).dropped == 0
    assert numbers(path) == [1, 2, 3, 4]


def test_a_path_that_became_a_directory_keeps_the_moved_file_in_use(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def body(log: AuditLog) -> None:
        write(log, 0)
        path.rename(tmp_path / "moved")
        path.mkdir()
        write(log, 1)
        path.rmdir()
        write(log, 2)

    with_log(path, body)
    assert (numbers(tmp_path / "moved"), numbers(path)) == ([0, 1], [2])


def test_a_full_file_that_was_moved_is_not_rotated_in_the_name_of_what_is_at_the_path(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def body(log: AuditLog) -> None:
        write(log, 0, 1)
        path.rename(tmp_path / "moved")
        path.mkdir()
        write(log, 2, 3)

    with_log(path, body, max_bytes=ROTATING)
    assert path.is_dir()
    assert numbers(tmp_path / "moved") == [0, 1, 2, 3]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "moved"]


def test_a_moved_file_that_another_server_took_is_followed_by_one_with_the_suffix(tmp_path: Path) -> None:
    path = tmp_path / "a.log"

    async def run() -> None:
        first, second = (AuditLog(str(path), suffix=f"-{number}") for number in (1, 2))
        first.start()
        write(first, 0)
        path.rename(tmp_path / "moved")
        second.start()
        write(second, 1)
        write(first, 2)
        await first.stop()
        await second.stop()

    asyncio.run(run())
    assert [numbers(tmp_path / name) for name in ("moved", "a.log", "a-1.log")] == [[0], [1], [2]]


# -- rotation --------------------------------------------------------------------------------------------------------


def test_a_rotation_that_fails_at_any_step_keeps_every_file(tmp_path: Path) -> None:
    """Let each call of each name fail once, in a rotation with three old files, and go on."""
    tried = 0
    for name in NAMES:
        for number in range(1, 12):
            directory = tmp_path / f"{name}-{number}"
            directory.mkdir()
            calls = Faults()

            def body(log: AuditLog, calls: Faults = calls, name: str = name, number: int = number) -> None:
                write(log, *range(8))  # four full files
                calls.arm(name, number, errno.EIO)
                write(log, 8)
                calls.disarm()
                write(log, 9, 10)
                assert log.problem == ""

            log = with_log(directory / "a", body, max_bytes=ROTATING, keep=9, calls=calls)
            assert log.dropped == 0
            assert all_numbers(directory) == list(range(11)), (name, number)
            tried += calls.failed
    assert tried >= 16, "the faults met calls of the rotation"


@pytest.mark.parametrize("name", ["open", "rename"])
def test_a_rotation_that_fails_again_and_again_deletes_and_moves_nothing(tmp_path: Path, name: str) -> None:
    """Without inodes the new file cannot be created; without rights the old one cannot be renamed."""
    path, calls = tmp_path / "a", Faults()

    def body(log: AuditLog) -> None:
        write(log, *range(6))
        calls.always[name] = errno.ENOSPC
        for _ in range(30):
            write(log, 6)
        assert "a is full and cannot be rotated, so it grows: no space left on device" in log.problem
        calls.disarm()
        write(log, *[7] * 40)
        assert log.problem == ""

    log = with_log(path, body, max_bytes=ROTATING, keep=40, calls=calls)
    assert log.dropped == 0
    assert Counter(all_numbers(tmp_path)) == Counter([*range(6), *[6] * 30, *[7] * 40])


def test_while_rotation_fails_it_is_tried_again_after_a_part_of_the_size(tmp_path: Path) -> None:
    path, calls = tmp_path / "a", Faults()

    def body(log: AuditLog) -> None:
        write(log, *[0] * 16)
        calls.always["rename"] = errno.EACCES
        write(log, *[1] * 32)
        assert calls.failed == 8, "once for each 16 bytes beyond 256: two records of 8"

    with_log(path, body, max_bytes=16 * 16, calls=calls)
    assert all_numbers(tmp_path) == sorted([0] * 16 + [1] * 32)


def test_a_rotation_that_was_killed_between_two_steps_loses_nothing(tmp_path: Path) -> None:
    """A gap in the numbers is where a killed rotation stopped. The next one fills it and moves no further."""
    path = tmp_path / "a"
    for name, number in {"a.1": 3, "a.2": 2, "a.4": 0}.items():
        (tmp_path / name).write_text(f'{{"n":{number}}}\n')
    path.write_text('{"n":4}\n{"n":5}\n')
    with_log(path, lambda log: write(log, 6), max_bytes=ROTATING)
    assert [numbers(tmp_path / f"a.{number}") for number in (4, 3, 2, 1)] == [[0], [2], [3], [4, 5]]
    assert numbers(path) == [6]


def test_old_files_beyond_the_number_are_deleted_after_the_rotation_only(tmp_path: Path) -> None:
    path, calls = tmp_path / "a", Faults()

    def body(log: AuditLog) -> None:
        write(log, *range(6))
        calls.always["unlink"] = errno.EPERM
        write(log, 6)
        assert "old files of" in log.problem
        assert all_numbers(tmp_path) == list(range(7))
        calls.disarm()
        write(log, 7, 8)
        assert log.problem == ""

    with_log(path, body, max_bytes=ROTATING, keep=2, calls=calls)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "a.1", "a.2"]
    assert all_numbers(tmp_path) == [4, 5, 6, 7, 8]


# -- writing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("truncates", [True, False])
@pytest.mark.parametrize("taken", range(3 * LINE))
def test_a_disk_that_takes_part_of_a_batch_gets_the_rest_later_and_once(
    tmp_path: Path, taken: int, truncates: bool
) -> None:
    path, calls = tmp_path / "a", Faults()

    def body(log: AuditLog) -> None:
        write(log, 0)
        if not truncates:
            calls.always["truncate"] = errno.EPERM  # as on a file that may only be appended to (chattr +a)
        calls.short = taken
        for number in (1, 2, 3):
            log.record({"n": number})
        log.flush()
        assert "no space left on device" in log.problem
        assert log.written + len(log._lines) == 4
        calls.disarm()
        write(log, 4)

    log = with_log(path, body, calls=calls)
    assert (log.written, log.dropped) == (5, 0)
    assert numbers(path) == [0, 1, 2, 3, 4]
    if truncates:
        assert path.read_bytes() == b"".join(b'{"n":%d}\n' % number for number in range(5))


@pytest.mark.parametrize("taken", [3, 7])
def test_a_line_that_one_worker_tore_is_ended_once_by_the_next_whose_first_try_fails(
    tmp_path: Path, taken: int
) -> None:
    path, calls, memory = tmp_path / "a", Faults(), SharedMemory(2)

    async def run() -> None:
        logs = [AuditLog(str(path), calls=calls, share=memory.share_of(worker)) for worker in range(2)]
        for log in logs:
            log.start()
        calls.always["truncate"] = errno.EPERM
        calls.short = taken
        write(logs[0], 0)
        write(logs[1], 1)
        calls.disarm()
        write(logs[1], 2)
        write(logs[0], 3)
        for log in logs:
            await log.stop()

    asyncio.run(run())
    assert sorted(numbers(path)) == [0, 1, 2, 3]
    assert b"\n\n" not in path.read_bytes()


def test_what_waits_beyond_the_bound_is_dropped_oldest_first_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logfile, "MAX_WAITING", 3)
    path, calls = tmp_path / "a", Faults()

    def body(log: AuditLog) -> None:
        calls.always["write"] = errno.ENOSPC
        write(log, *range(5))
        assert log.lost == 2
        calls.disarm()
        write(log, 5)

    with caplog.at_level(logging.ERROR):
        log = with_log(path, body, calls=calls)
    assert (log.dropped, log.written) == (3, 3)
    assert numbers(path) == [3, 4, 5]


def test_what_cannot_be_written_at_the_end_is_counted_as_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, calls = tmp_path / "a", Faults()

    def body(log: AuditLog) -> None:
        calls.always["write"] = errno.EIO
        write(log, 0, 1)

    assert with_log(path, body, calls=calls).lost == 2
    assert "2 audit records were lost" in caplog.text


STEPS = st.one_of(
    st.integers(1, 4).map(lambda count: ("write", count)),
    st.sampled_from([("move", 0), ("delete", 0), ("truncate", 0), ("recover", 0), ("directory", 0)]),
    st.tuples(
        st.just("fault"),
        st.tuples(
            st.sampled_from(NAMES),
            st.integers(0, 6),
            st.sampled_from([errno.ENOSPC, errno.ENOENT, errno.EACCES, errno.EIO, errno.EROFS]),
        ).filter(
            lambda fault: fault[0] != "lstat" or fault[2] != errno.ENOENT
        ),  # that would be another answer, not a fault
    ),
    st.integers(0, 20).map(lambda taken: ("short", taken)),
)


@given(steps=st.lists(STEPS, max_size=40), workers=st.integers(0, 2))
def test_every_record_is_in_one_file_once_or_counted(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], workers: int
) -> None:
    directory = tmp_path_factory.mktemp("audit")
    path, calls = directory / "a", Faults()
    memory = SharedMemory(workers) if workers else None
    gone: Counter[int] = Counter()
    """Records that the operator deleted."""
    count = iter(range(10**6))
    moved = iter(range(10**6))

    def keep_gone(file: Path) -> None:
        if file.is_file():
            gone.update(numbers(file))

    async def run() -> list[AuditLog]:
        logs = [
            AuditLog(
                str(path),
                max_bytes=40,
                keep=10**6,
                calls=calls,
                share=ALONE if memory is None else memory.share_of(worker),
            )
            for worker in range(max(1, workers))
        ]
        for log in logs:
            log.start()
        for turn, (kind, value) in enumerate(steps):
            log = logs[turn % len(logs)]
            match kind:
                case "write":
                    for _ in range(value):
                        log.record({"n": next(count)})
                    log.flush()
                case "move" if path.is_file():
                    path.rename(directory / f"moved-{next(moved)}")
                case "delete" if path.is_file():
                    keep_gone(path)
                    path.unlink()
                case "truncate" if path.is_file():
                    keep_gone(path)
                    os.truncate(path, 0)
                case "directory" if not path.exists():
                    path.mkdir()
                case "recover":
                    recover()
                case "fault":
                    name, number, code = value
                    if number:
                        calls.arm(name, number, code)
                    else:
                        calls.always[name] = code
                case "short":
                    calls.short = value
        recover()
        for log in logs:
            write(log, next(count), next(count))  # a rotation that failed is tried again after the first
            assert not log.problem, "it recovers by itself"
            await log.stop()
        return logs

    def recover() -> None:
        calls.disarm()
        if path.is_dir():
            path.rmdir()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logfile, "MAX_WAITING", 6)
        logs = asyncio.run(run())
    found = Counter(number for file in directory.iterdir() for number in numbers(file))
    assert all(times == 1 for times in (found + gone).values()), "no record is there twice"
    lost = set(range(next(count))) - set(found) - set(gone)
    assert len(lost) == sum(log.dropped for log in logs)
    assert sum(log.written for log in logs) == sum(found.values()) + sum(gone.values())


# -- modes -----------------------------------------------------------------------------------------------------------

READ = "/api/v1/namespaces/default/configmaps"
RECORDED = ("kind: Policy", "apiVersion: audit.k8s.io/v1", "rules:", "- level: Metadata")


def served(path: Path, mode: str, body: Callable[[Server, Faults], Any], **options: Any) -> None:
    """Run `body` with a server whose audit log has a mode and a disk that may fail."""

    async def run() -> None:
        async with open_server(audit_log_path=str(path), audit_log_mode=mode, **options) as server:
            calls = Faults()
            server.assembly.base.audit.log._file._calls = calls
            await body(server, calls)

    asyncio.run(run())


@pytest.mark.parametrize("mode", ["blocking", "blocking-strict"])
def test_a_blocking_response_comes_after_its_record(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "audit.log"

    async def body(server: Server, calls: Faults) -> None:
        for number in range(3):
            assert (await server.call("GET", READ, headers=[("Audit-ID", f"n{number}")])).status == 200
            assert f'"auditID":"n{number}","stage":"ResponseComplete"' in path.read_text()

    served(path, mode, body)


def test_a_blocking_response_comes_without_its_record_when_the_disk_fails(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"

    async def body(server: Server, calls: Faults) -> None:
        calls.always["write"] = errno.ENOSPC
        assert (await server.call("GET", READ)).status == 200
        assert request_records(path) == []
        ready = await server.call("GET", "/readyz?verbose")
        assert ready.status == 200
        assert "[!]log warning" in ready.text
        calls.disarm()

    served(path, "blocking", body)
    assert len(request_records(path)) == 2, "both were written when the disk took them"


def test_blocking_strict_refuses_what_it_cannot_record(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"

    async def body(server: Server, calls: Faults) -> None:
        calls.always["write"] = errno.ENOSPC
        refused = await server.call("POST", READ, body={"metadata": {"name": "unrecorded"}})
        assert (refused.status, refused.obj["reason"]) == (500, "InternalError")
        assert refused.message == "failed to store audit event"
        assert (await server.call("GET", READ)).status == 500
        ready = await server.call("GET", "/readyz?verbose")
        assert ready.status == 500
        assert "[-]log failed" in ready.text
        assert (await server.call("GET", "/livez")).status == 200, "a restart would not help"
        calls.disarm()
        assert "apiserver_audit_requests_rejected_total 2" in (await server.call("GET", "/metrics")).text
        assert (await server.call("GET", f"{READ}/unrecorded")).status == 404, "nothing was stored"
        assert (await server.call("GET", "/readyz")).status == 200

    served(path, "blocking-strict", body)
    stages = [record["stage"] for record in request_records(path)]
    assert Counter(stages) == {"RequestReceived": 7, "ResponseComplete": 7}, "what waited was written, each once"


def test_blocking_strict_is_ready_while_the_file_grows_because_it_cannot_be_rotated(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"

    async def body(server: Server, calls: Faults) -> None:
        calls.always["rename"] = errno.EROFS
        server.assembly.base.audit.log._file._max_bytes = 1
        assert (await server.call("GET", READ)).status == 200
        ready = await server.call("GET", "/readyz?verbose")
        assert ready.status == 200, "every record is written"
        assert "[!]log warning" in ready.text
        calls.always["write"] = errno.ENOSPC
        assert (await server.call("GET", READ)).status == 500
        assert "[-]log failed" in (await server.call("GET", "/readyz?verbose")).text
        calls.disarm()
        assert (await server.call("GET", READ)).status == 200
        assert "[+]log ok" in (await server.call("GET", "/readyz?verbose")).text

    served(path, "blocking-strict", body)


def test_a_policy_without_the_first_stage_leaves_nothing_to_refuse(tmp_path: Path) -> None:
    """As with kube-apiserver: only a failure to record RequestReceived refuses a request."""
    path, policy = tmp_path / "audit.log", tmp_path / "policy.yaml"
    policy.write_text("\n".join((*RECORDED, "  omitStages: [RequestReceived]")))

    async def body(server: Server, calls: Faults) -> None:
        calls.always["write"] = errno.ENOSPC
        assert (await server.call("GET", READ)).status == 200
        calls.disarm()

    served(path, "blocking-strict", body, audit_policy_file=str(policy))


@pytest.mark.parametrize("mode", ["batch", "blocking", "blocking-strict"])
def test_a_watch_is_recorded_at_its_beginning(tmp_path: Path, mode: str) -> None:
    path, policy = tmp_path / "audit.log", tmp_path / "policy.yaml"
    policy.write_text("\n".join(RECORDED))

    async def body(server: Server, calls: Faults) -> None:
        stream = await server.follow(f"{READ}?watch=1")
        await stream.end()

    served(path, mode, body, audit_policy_file=str(policy))
    stages = [record["stage"] for record in request_records(path)]
    assert stages == ["RequestReceived", "ResponseStarted", "ResponseComplete"]


def test_waiting_requests_are_answered_when_the_log_stops(tmp_path: Path) -> None:
    async def run() -> None:
        log = AuditLog(str(tmp_path / "a"), mode=AuditMode.BLOCKING_STRICT)
        log.start()
        assert await log.stored()
        log.record({"n": 0})
        waiting = asyncio.ensure_future(log.stored())
        await asyncio.sleep(0)
        await log.stop()
        assert not await waiting, "it was written at the stop, which the request cannot know"
        log.record({"n": 1})
        assert not await log.stored()

    asyncio.run(run())
