"""Test the audit log file: one record for each request, rotation, failing disks.

Source: docs/protocol/audit.md.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import stat
import sys
import tty
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mooring.errors import ConfigError
from mooring.server.audit import logfile, rotatedfile
from mooring.server.audit.logfile import AuditLog
from mooring.server.audit.rotatedfile import Calls, RotatedFile
from tests.support.auditlog import records, request_records
from tests.support.serverroom import Server, connection, open_server

SIZES = [10, 1500, 1500, 1500, 4000, 6000, 1, 20_000, 3]
"""Bytes of lines, some of them longer than what a pipe takes as one (PIPE_BUF)."""


def test_a_pipe_whose_reader_stalls_and_reads_again_gets_each_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotatedfile, "READER_SECONDS", 0.0)
    path, lines = tmp_path / "pipe", [b"%d" % at + b"x" * size for at, size in enumerate(SIZES)]
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    file = RotatedFile(str(path), suffix="", max_bytes=1, keep=1, max_age=0, now=None, shared=None)
    left, read = lines[:], b""
    try:
        file.open()
        while left:
            written = file.write(left)
            assert file.is_refusing is (written < len(left))
            left = left[written:]
            with suppress(BlockingIOError):
                while piece := os.read(reader, 1 << 16):
                    read += piece
    finally:
        file.close()
        os.close(reader)
    assert read == b"".join(line + b"\n" for line in lines)


class WithoutProc(Calls):
    def open(self, path: str, flags: int) -> int:
        if path.startswith("/proc/"):
            raise FileNotFoundError(path)
        return super().open(path, flags)


class OfAnotherUser(Calls):
    def open(self, path: str, flags: int) -> int:
        raise PermissionError(path)


@pytest.mark.parametrize("calls", [Calls(), WithoutProc()])
def test_a_terminal_whose_reader_stalls_and_reads_again_gets_each_line_once(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write to a terminal blocks when it has room for less, although poll sees room."""
    monkeypatch.setattr(rotatedfile, "READER_SECONDS", 0.0)
    reader, terminal = os.openpty()
    tty.setraw(terminal)
    os.set_blocking(reader, False)
    lines = [b"%d" % at + b"x" * size for at, size in enumerate(SIZES * 3)]
    file = RotatedFile("-", suffix="", max_bytes=1, keep=1, max_age=0, now=None, shared=None, calls=calls)
    left, read = lines[:], b""
    with os.fdopen(terminal, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        file.open()
        stalls = 0
        while left:
            written = file.write(left)
            assert file.is_refusing is (written < len(left))
            stalls += file.is_refusing
            left = left[written:]
            with suppress(BlockingIOError):
                while piece := os.read(reader, 1 << 16):
                    read += piece
        assert stalls
        file.close()
        assert os.get_blocking(output.fileno()), "other programs have the same open file"
    os.close(reader)
    assert read == b"".join(line + b"\n" for line in lines)


def test_a_terminal_of_another_user_is_written_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, terminal = os.openpty()
    file = RotatedFile("-", suffix="", max_bytes=1, keep=1, max_age=0, now=None, shared=None, calls=OfAnotherUser())
    with os.fdopen(terminal, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert file.write([b"line"]) == 1
        file.close()
        os.fstat(output.fileno())
        assert os.read(reader, 100) == b"line\r\n"
    os.close(reader)


def test_a_line_that_was_dropped_half_way_is_ended_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotatedfile, "READER_SECONDS", 0.0)
    path, long = tmp_path / "pipe", b"x" * 20_000
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 8192)
    file = RotatedFile(str(path), suffix="", max_bytes=1, keep=1, max_age=0, now=None, shared=None)
    try:
        file.open()
        assert file.write([long]) == 0
        begin = os.read(reader, 1 << 16)
        assert file.write([b"next", b"last"]) == 2
        assert begin + os.read(reader, 1 << 16) == long[: len(begin)] + b"\nnext\nlast\n"
    finally:
        file.close()
        os.close(reader)


SECRETS = "/api/v1/namespaces/default/secrets"


def recorded(path: Path, *calls: tuple[str, str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the audit records of some calls."""

    async def body() -> None:
        async with open_server(audit_log_path=str(path)) as server:
            for method, target, how in calls:
                given = {key: value(server) if callable(value) else value for key, value in how.items()}
                if "watch=" in target:
                    await (await server.follow(target, **given)).end()
                else:
                    await server.call(method, target, **given)

    asyncio.run(body())
    return request_records(path)


def bob(server: Server) -> Any:
    return server.user("bob")


@pytest.mark.parametrize(
    ("method", "target", "how", "expected"),
    [
        pytest.param(
            "GET",
            f"{SECRETS}?limit=5",
            {"via": bob, "headers": [("User-Agent", "kubectl/v1"), ("Audit-ID", "one")]},
            {
                "kind": "Event",
                "apiVersion": "audit.k8s.io/v1",
                "level": "Metadata",
                "stage": "ResponseComplete",
                "auditID": "one",
                "requestURI": f"{SECRETS}?limit=5",
                "verb": "list",
                "sourceIPs": ["192.0.2.1"],
                "userAgent": "kubectl/v1",
                "objectRef": {"resource": "secrets", "namespace": "default", "apiVersion": "v1"},
                "responseStatus": {"metadata": {}, "code": 403, "status": "Failure", "reason": "Forbidden"},
                "requestReceivedTimestamp": "2026-01-02T03:04:05.000000Z",
            },
            id="a forbidden list",
        ),
        pytest.param(
            "GET",
            "/version",
            {"token": "abcdef.0123456789abcdef"},
            {
                "user": {},
                "responseStatus": {"metadata": {}, "code": 401, "status": "Failure", "reason": "Unauthorized"},
                "verb": "get",
            },
            id="a refused token",
        ),
        pytest.param(
            "GET",
            "/version",
            {"via": connection()},
            {"user": {"username": "system:anonymous", "groups": ["system:unauthenticated"]}},
            id="an anonymous request",
        ),
        pytest.param(
            "GET",
            "/version",
            {"headers": [("Impersonate-User", "ann")]},
            {
                "impersonatedUser": {"username": "ann", "groups": ["system:authenticated"]},
                "authenticationMetadata": {"impersonationConstraint": "impersonate:user-info"},
            },
            id="an impersonated request",
        ),
        pytest.param(
            "GET",
            f"{SECRETS}?watch=1",
            {},
            {"verb": "watch", "responseStatus": {"metadata": {}, "code": 200}},
            id="a watch",
        ),
        pytest.param(
            "POST",
            SECRETS,
            {"body": {"metadata": {"name": "made"}}},
            {
                "verb": "create",
                "objectRef": {"resource": "secrets", "namespace": "default", "name": "made", "apiVersion": "v1"},
                "responseStatus": {"metadata": {}, "code": 201},
            },
            id="a create names what it made",
        ),
        pytest.param(
            "GET",
            "/apis/authorization.k8s.io/v1/nowhere",
            {},
            {"responseStatus": {"metadata": {}, "code": 404, "status": "Failure", "reason": "NotFound"}},
            id="a path nobody serves",
        ),
    ],
)
def test_one_record_a_request(
    tmp_path: Path, method: str, target: str, how: dict[str, Any], expected: dict[str, Any]
) -> None:
    (record,) = recorded(tmp_path / "audit.log", (method, target, how))
    assert {key: record.get(key) for key in expected} == expected


def test_the_decision_and_its_reason_are_annotations(tmp_path: Path) -> None:
    allowed, forbidden = recorded(tmp_path / "a", ("GET", "/version", {}), ("GET", SECRETS, {"via": bob}))
    assert allowed["annotations"]["authorization.k8s.io/decision"] == "allow"
    assert forbidden["annotations"]["authorization.k8s.io/decision"] == "forbid"


def test_records_hold_no_body_no_header_and_no_token(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    hidden = "c2VjcmV0LXZhbHVl"
    recorded(
        path,
        ("POST", SECRETS, {"body": {"metadata": {"name": "a"}, "data": {"key": hidden}}}),
        ("GET", "/version", {"token": "abcdef.0123456789abcdef"}),
        (
            "POST",
            "/apis/authentication.k8s.io/v1/tokenreviews",
            {"body": {"spec": {"token": "fedcba.9876543210fedcba"}}},
        ),
        ("GET", "/version", {"headers": [("Cookie", "crumbs"), ("Authorization", "Basic cGFzc3dvcmQ=")]}),
    )
    text = path.read_text()
    for secret in (hidden, "0123456789abcdef", "9876543210fedcba", "crumbs", "cGFzc3dvcmQ"):
        assert secret not in text


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    recorded(tmp_path / "audit.log", ("GET", "/version", {}))
    assert stat.S_IMODE((tmp_path / "audit.log").stat().st_mode) == 0o600


@pytest.mark.parametrize("path", ["", "/dev/null"])
def test_nothing_is_written_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)

    async def body() -> None:
        log = AuditLog(path)
        assert not log.enabled
        log.start()
        await log.stop()

    asyncio.run(body())
    assert list(tmp_path.iterdir()) == []


def test_standard_output_is_named_by_a_dash(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    async def body() -> None:
        log = AuditLog("-")
        log.start()
        log.record({"n": 1})
        await log.stop()

    asyncio.run(body())
    assert capfdbinary.readouterr().out == b'{"n":1}\n'


def test_a_file_that_cannot_be_opened_is_an_error_that_names_the_flag(tmp_path: Path) -> None:
    async def body() -> None:
        AuditLog(str(tmp_path / "missing" / "audit.log")).start()

    with pytest.raises(ConfigError, match=r"audit-log-path: .*no such file"):
        asyncio.run(body())


async def write(log: AuditLog, numbers: range) -> None:
    """Each number as a batch of its own, written now."""
    for number in numbers:
        log.record({"n": number})
        log.flush()


def test_the_file_is_rotated_by_size_and_few_are_kept(tmp_path: Path) -> None:
    async def body() -> None:
        log = AuditLog(str(tmp_path / "a"), max_bytes=20, keep=2)
        log.start()
        await write(log, range(10))
        await log.stop()

    asyncio.run(body())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a.1", "a.2"]
    kept = [record["n"] for name in ("a.2", "a.1", "a") for record in records(tmp_path / name)]
    assert kept == list(range(kept[0], 10))
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in tmp_path.iterdir())


def test_when_the_disk_does_not_keep_up_the_oldest_go_and_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logfile, "MAX_WAITING", 3)
    monkeypatch.setattr(logfile, "FLUSH_SECONDS", 0.001)

    async def body() -> None:
        log = AuditLog(str(tmp_path / "a"))
        log.start()
        for number in range(5):
            log.record({"n": number})
        while "lost" not in caplog.text:
            await asyncio.sleep(0.001)
        await log.stop()
        assert log.dropped == 2

    with caplog.at_level(logging.ERROR):
        asyncio.run(body())
    assert [record["n"] for record in records(tmp_path / "a")] == [2, 3, 4]
    assert "2 audit records were lost" in caplog.text


def test_stopping_while_a_batch_is_being_written_loses_and_mixes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    monkeypatch.setattr(logfile, "FLUSH_SECONDS", 0.001)
    started, go_on = threading.Event(), threading.Event()

    class Slow(Calls):
        def write(self, descriptor: int, data: memoryview) -> int:
            started.set()
            go_on.wait(20)
            return super().write(descriptor, data)

    async def body() -> None:
        log = AuditLog(str(tmp_path / "a"), calls=Slow())
        log.start()
        log.record({"n": 0})
        await asyncio.to_thread(started.wait, 20)
        log.record({"n": 1})
        stopping = asyncio.ensure_future(log.stop())
        await asyncio.sleep(0)
        go_on.set()
        await stopping

    asyncio.run(body())
    assert [record["n"] for record in records(tmp_path / "a")] == [0, 1]
