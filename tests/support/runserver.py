"""A server as a process of its own on a free port, for tests with real clients.

Rules kept here: `python runserver.py DATADIR PORT` is the process; it says one line on stdout when it listens, so nobody waits by
the clock. `running` asks /readyz before it gives the server away, and ends it with SIGTERM, whose exit status must be 0.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

READY_SECONDS = 20.0
"""Far above what a start takes (under a second), because the test machine may be busy."""
DRAIN_SECONDS = 20.0
ATTEMPTS = 5
"""Another process may take the free port between our asking and the server's binding."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that answers /readyz. `admin` is its kubeconfig, with the rights of cluster-admin."""

    url: str
    data: Path
    log: Path

    @property
    def admin(self) -> Path:
        return self.data / "admin.conf"

    @property
    def super_admin(self) -> Path:
        return self.data / "super-admin.conf"

    @property
    def ca(self) -> Path:
        return self.data / "pki" / "ca.crt"


def free_port() -> int:
    """A port of the loopback address that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(data: Path) -> Iterator[RunningServer]:
    """A ready server with its state in `data`; drained and gone afterwards."""
    log = data.with_name(data.name + ".log")
    for _ in range(ATTEMPTS):
        port = free_port()
        with log.open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, __file__, str(data), str(port)], stdout=subprocess.PIPE, stderr=errors
            )
        assert process.stdout is not None
        with process, process.stdout as said:
            if not said.readline():
                continue
            server = RunningServer(f"https://127.0.0.1:{port}", data, log)
            try:
                _ready(server)
                yield server
            finally:
                process.terminate()
                try:
                    process.wait(DRAIN_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    raise
        assert process.returncode == 0, log.read_text()
        return
    raise AssertionError(f"no server started:\n{log.read_text()}")


def _ready(server: RunningServer) -> None:
    context = ssl.create_default_context(cafile=str(server.ca))
    for left in reversed(range(200)):
        try:
            with urllib.request.urlopen(f"{server.url}/readyz", timeout=READY_SECONDS, context=context) as answer:
                assert answer.status == 200
                return
        except urllib.error.HTTPError as error:
            if error.code != 500 or not left:  # 500: it listens, and a check is not passed yet
                raise AssertionError(f"{error.code}: {error.read()!r}\n{server.log.read_text()}") from error


def main(data: str, port: str) -> None:
    """The process itself: serve until SIGTERM."""
    import logging

    from mooring.config import server_config
    from mooring.plane.supervise import serve

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    config = server_config(data_dir=data, bind_address="127.0.0.1", secure_port=int(port))
    serve(config, on_ready=lambda plane: print("listening", flush=True))  # noqa: T201 - read by `running`


if __name__ == "__main__":
    main(*sys.argv[1:])
