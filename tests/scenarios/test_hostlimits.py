"""A server with two workers holds its limits, its audit log, its metrics and its refusals as one."""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mooring.authn.authfailures import BURST, PER_SECOND
from tests.support.liveserver import LiveServer, start_server
from tests.support.polling import eventually
from tests.support.workers import worker_pids

WORKERS = 2
GUESSES = 40
REFUSED = 'authentication_attempts_total{result="refused"}'


def request(server: LiveServer, path: str, token: str) -> tuple[int, str, str]:
    """Send one request over a connection of its own. Return status, Audit-Id and body."""
    context = ssl.create_default_context(cadata=server.ca_pem.decode())
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=30)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status, response.headers["Audit-Id"], response.read().decode()
    finally:
        connection.close()


def refused_by_all(server: LiveServer) -> float:
    """Return the counter of refused requests, as one of the workers shows it."""
    text = server.run(lambda client: client.read("/metrics")).decode()
    return float(next(line for line in text.splitlines() if line.startswith(REFUSED)).rpartition(" ")[2])


def recorded(server: LiveServer) -> set[str]:
    """Return the Audit-Ids of the audit log, of whose lines none is torn."""
    whole, _, _ = (server.data_dir / "audit.log").read_text().rpartition("\n")
    return {json.loads(line)["auditID"] for line in whole.splitlines()}


def test_two_workers_are_one_server_for_guesses_the_audit_log_metrics_and_refusals(tmp_path: Path) -> None:
    server = start_server(tmp_path / "data", "--workers", str(WORKERS))
    eventually(lambda: f"with {WORKERS} workers" in server.log, server)
    began = time.monotonic()
    with ThreadPoolExecutor(GUESSES) as threads:
        replies = list(threads.map(lambda number: request(server, "/api", f"guess-{number}"), range(GUESSES)))
    heard = Counter(status for status, _, _ in replies)
    assert set(heard) == {401, 429}
    assert BURST <= heard[401] <= BURST + (time.monotonic() - began) * PER_SECOND + 1
    assert [refused_by_all(server) for _ in range(4)] == [GUESSES] * 4
    for _, audit_id, _ in replies[:6]:
        path = f"/debug/authentication/refusals/{audit_id}"
        assert server.run(lambda client, path=path: client.get_path(path))["auditID"] == audit_id  # type: ignore[misc]  # lambda default
    sent = {audit_id for _, audit_id, _ in replies}
    eventually(lambda: sent <= recorded(server), server)
    victim = worker_pids(server)[0]
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: len(worker_pids(server)) == WORKERS and victim not in worker_pids(server), server)
    assert refused_by_all(server) == GUESSES, "no counter goes back"
    assert server.stop() == 0
    assert sent <= recorded(server)
