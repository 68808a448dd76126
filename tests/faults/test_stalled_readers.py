"""A server whose standard error, or audit log on standard output, is not read: it serves on, and SIGTERM ends it.

Source: a container's log driver that blocks, a stopped `tee`, a terminal after Ctrl-S (moby/moby#31540).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mooring.client.http.requests import fetch
from mooring.clock import SystemClock
from mooring.secret import Secret
from mooring.trust.httpexchange import HttpRequest, HttpResponse, Trust
from tests.support import forkserver
from tests.support.liveserver import LiveServer, await_ready
from tests.support.ports import free_port

REQUESTS = 3
"""Requests with a wrong token: each writes a line."""
STOP_SECONDS = 30
FILLER = b"#"


def refused(server: LiveServer, token: str) -> int:
    """Return the status of a request with a wrong token."""
    authorization = Secret(f"Bearer {token}".encode())
    trust = Trust(server.ca_pem)
    request = HttpRequest(trust, url=f"{server.url}/api/v1/nodes", authorization=authorization)
    answer = asyncio.run(fetch(request, SystemClock()))
    assert isinstance(answer, HttpResponse), answer
    return answer.status


@contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    size = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writer, FILLER * size)
    try:
        yield reader, writer
    finally:
        os.close(reader)


@pytest.mark.parametrize(
    ("is_audit_log", "flags"),
    [
        pytest.param(False, (), id="standard error"),
        pytest.param(False, ("--workers", "2"), id="standard error of workers"),
        pytest.param(True, ("--audit-log-path", "-"), id="the audit log"),
        pytest.param(
            True, ("--audit-log-path", "-", "--audit-log-mode", "blocking"), id="an audit log that is waited for"
        ),
    ],
)
def test_a_reader_that_stalls_stops_no_client_and_no_stop(
    tmp_path: Path, is_audit_log: bool, flags: tuple[str, ...]
) -> None:
    port = free_port()
    place = ("--data-dir", str(tmp_path / "data"), "--bind-address", "127.0.0.1", "--secure-port", str(port))
    with full_pipe() as (reader, writer):
        with os.fdopen(writer, "wb") as stalled, (tmp_path / "data.log").open("ab") as log:
            process = forkserver.Process(
                ("-m", "mooring", "server", *place, *flags),
                stdout=stalled if is_audit_log else log,
                stderr=log if is_audit_log else stalled,
            )
        server = LiveServer(tmp_path / "data", port, process, flags)
        try:
            await_ready(server)
            answers = {refused(server, f"wrong-{number}") for number in range(REQUESTS)}
            assert answers <= {401, 429}
            await_ready(server)
            process.send_signal(signal.SIGTERM)
            assert process.wait(STOP_SECONDS) == 0
        finally:
            process.kill()
            process.wait()
        assert not os.read(reader, 1 << 20).strip(FILLER)
