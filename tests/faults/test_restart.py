"""A restart of all workers by SIGHUP while clients write on kept connections: every request is answered and counted.

The clients repeat nothing. Each uses its connection until a reply says that it ends, and opens another then.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import signal
import ssl
import threading
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.faults.test_several_processes import children
from tests.support.killable import KillableServer

CLIENTS, WORKERS = 4, 2


@dataclass
class Writer:
    """One client that creates ConfigMaps, one after the other, until `enough` is set."""

    name: str
    context: ssl.SSLContext
    port: int
    enough: threading.Event
    created: list[str] = field(default_factory=list)
    connections: int = 0
    failure: str = ""

    def run(self) -> None:
        connection = self._connect()
        try:
            while not self.enough.is_set():
                name = f"{self.name}-{len(self.created)}"
                body = json.dumps({"metadata": {"name": name}})
                connection.request(
                    "POST", "/api/v1/namespaces/default/configmaps", body, {"Content-Type": "application/json"}
                )
                response = connection.getresponse()
                response.read()
                if response.status != 201:
                    self.failure = f"{name}: {response.status}"
                    return
                self.created.append(name)
                if response.getheader("connection") == "close":
                    connection.close()
                    connection = self._connect()
        except (OSError, http.client.HTTPException) as error:
            self.failure = f"request {len(self.created)} was lost: {error!r}"
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPSConnection:
        self.connections += 1
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context, timeout=60)


def administrator(server: KillableServer, directory: Path) -> ssl.SSLContext:
    """Return a TLS context with the client certificate of admin.conf."""
    config = yaml.safe_load((server.data_dir / "admin.conf").read_text())
    user, cluster = config["users"][0]["user"], config["clusters"][0]["cluster"]
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    identity = directory / "admin.pem"
    identity.write_bytes(b"".join(base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key")))
    context.load_cert_chain(identity)
    return context


def test_a_restart_of_all_workers_loses_no_request(tmp_path: Path) -> None:
    server = KillableServer(tmp_path / "data", flags=("--workers", str(WORKERS)))
    enough = threading.Event()

    async def scenario() -> list[Writer]:
        server.launch()
        await server.ready()
        context = administrator(server, tmp_path)
        writers = [Writer(f"writer{number}", context, server.port, enough) for number in range(CLIENTS)]
        threads = [threading.Thread(target=writer.run) for writer in writers]
        for thread in threads:
            thread.start()
        try:
            for _ in range(2):
                assert server.process is not None
                before = children(server.process.pid)
                server.process.send_signal(signal.SIGHUP)
                while set(before) & set(children(server.process.pid)) and all(one.is_alive() for one in threads):
                    assert "the restart ends" not in server.log, server.log
                    await asyncio.sleep(0.05)
        finally:
            enough.set()
            await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
        async with server.client() as client:
            listed = (await client.list("configmaps", "default")).items
        stored = {one["metadata"]["name"] for one in listed if one["metadata"]["name"].startswith("writer")}
        assert stored == {name for writer in writers for name in writer.created}
        assert await server.stop() == 0
        return writers

    try:
        writers = asyncio.run(scenario())
    finally:
        server.kill()
    assert [writer.failure for writer in writers] == [""] * CLIENTS
    assert all(writer.connections > 2 for writer in writers), "each was asked to leave a worker, twice at least"
