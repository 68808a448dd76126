"""The supervisor API of a live server with two workers: what is on disk, and a token that is replaced."""

from __future__ import annotations

import http.client
import ssl
import time
from base64 import b64encode
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

from mooring.clock import SystemClock
from mooring.secret import Secret
from mooring.trust.k3s.acceptedtokens import FormerToken, digest, encode_former
from mooring.trust.k3s.token import parse_token
from tests.support.liveserver import LiveServer, start_server
from tests.support.workers import WORKERS

PATIENCE = 20.0


def get(server: LiveServer, path: str, user: str = "", password: str = "") -> tuple[int, bytes]:
    """Return status and body, by a connection of its own."""
    context = ssl.create_default_context(cadata=server.ca_pem.decode())
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=PATIENCE)
    headers = {"Authorization": f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"} if user else {}
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_workers_follow_a_token_that_is_replaced(tmp_path: Path) -> None:
    server = start_server(tmp_path / "data", "--k3s-supervisor", "--workers", str(WORKERS))
    folder = tmp_path / "data/server"
    try:
        old = parse_token((folder / "node-token").read_bytes().strip())
        assert old.ca_hash == sha256(get(server, "/cacerts")[1]).hexdigest()
        assert old.password is not None
        first, second = old.password.reveal().decode(), "b" * 32
        assert get(server, "/v1-k3s/config", "node", first)[0] == 200
        assert get(server, "/api/v1/nodes", "node", first)[0] == 403
        until = SystemClock().now() + timedelta(hours=1)
        (folder / "former-tokens.json").write_bytes(encode_former([FormerToken(digest(Secret(first)), until)]))
        (folder / "token").write_text(f"{second}\n")
        accepted, deadline = 0, time.monotonic() + PATIENCE
        while accepted < 8 * WORKERS:  # in a row, each by a connection of its own
            assert time.monotonic() < deadline, "a worker does not follow the file"
            time.sleep(0.05)  # refusals of this address are limited
            accepted = accepted + 1 if get(server, "/v1-k3s/encrypt/status", "server", second)[0] == 200 else 0
        assert get(server, "/v1-k3s/config", "node", first)[0] == 200, "the grace"
        while (written := parse_token((folder / "token").read_bytes().strip())).ca_hash != old.ca_hash:
            assert time.monotonic() < deadline, "the file got no hash"
            time.sleep(0.05)
        assert written.password == Secret(second)
    finally:
        server.stop()
