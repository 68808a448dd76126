"""A server whose limit of open files is low: it refuses connections, says so, and goes on."""

from __future__ import annotations

import os
import resource
import socket
import ssl
import subprocess
import sys
from pathlib import Path

from tests.support.ports import free_port

LIMIT = 96
PATIENCE = 60.0


def connect(port: int, source: str) -> ssl.SSLSocket:
    """Return a connection on which a request was answered. Raises OSError when it is refused."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    client = context.wrap_socket(socket.create_connection(("127.0.0.1", port), PATIENCE, source_address=(source, 0)))
    client.settimeout(PATIENCE)
    client.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert client.recv(4096).startswith(b"HTTP/1.1 200")
    return client


def test_a_server_without_descriptors_for_clients_refuses_them_and_keeps_its_own(tmp_path: Path) -> None:
    port, data_dir = free_port(), tmp_path / "data"
    command = [sys.executable, "-m", "mooring", "server", "--data-dir", str(data_dir), "--bind-address", "127.0.0.1"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MOORING_")}
    with subprocess.Popen(
        [*command, "--secure-port", str(port)],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT)),
    ) as server:
        assert server.stderr is not None
        lines = []
        for line in server.stderr:
            lines.append(line)
            if " serving on " in line:
                break
        held: list[ssl.SSLSocket] = []
        refused = 0
        try:
            for number in range(LIMIT):
                try:
                    held.append(connect(port, f"127.0.0.{2 + number % 3}"))
                except (ssl.SSLError, ConnectionError):
                    refused += 1
            assert len(held) == LIMIT // 2
            assert refused == LIMIT - len(held), "each was refused at once"
            assert len(list(Path(f"/proc/{server.pid}/fd").iterdir())) < LIMIT
        finally:
            for client in held:
                client.close()
        server.terminate()
        lines += server.stderr.readlines()
    assert server.returncode == 0
    log = "".join(lines)
    assert f"the limit of open files, {LIMIT}, allows {LIMIT // 2} connections" in log
    assert log.count("connections are refused") == 1
    for word in ("damaged", "too many open files", "will not be noticed"):
        assert word not in log
