"""`mooring secrets-encryption` against a server of two workers: status, a bad file, and a rotation that was killed in between."""

from __future__ import annotations

import json
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mooring.client.cluster import ClusterClient
from tests.support import forkserver
from tests.support.commandline import CommandLine, mooring
from tests.support.encryption import IDENTITY, entry, file, local
from tests.support.liveserver import LiveServer, start_server
from tests.support.polling import eventually

__all__ = ["mooring"]
COUNT = 40


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    (tmp_path / "encryption.yaml").write_bytes(file(entry("secrets", local("secretbox", "first"), IDENTITY)))
    flags = ("--encryption-provider-config", str(tmp_path / "encryption.yaml"))
    server = start_server(tmp_path / "data", *flags, "--encryption-provider-config-automatic-reload", "--workers", "2")
    yield server
    server.stop()


def metric(server: LiveServer, line: str) -> bool:
    async def read(client: ClusterClient) -> bytes:
        return await client.read("/metrics")

    return any(one.startswith(line) for one in server.run(read).decode().splitlines())


def test_keys_are_replaced_while_two_workers_serve(
    server: LiveServer, mooring: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    place = tmp_path / "encryption.yaml"
    first = place.read_bytes()

    async def create(client: ClusterClient) -> None:
        for number in range(COUNT):
            metadata = {"name": f"s{number:02}", "namespace": "default"}
            await client.create("secrets", {"metadata": metadata, "stringData": {"key": f"value-{number}"}})

    def status() -> Any:
        return json.loads(mooring.done("secrets-encryption", "status", "-o", "json"))

    def secrets_of(found: Any) -> Any:
        return next(one for one in found["resources"] if one["resource"] == "secrets")

    server.run(create)
    eventually(lambda: len(status()["servers"]) == 2)
    before = secrets_of(status())
    assert before["writes"] == "secretbox first"
    assert set(before["values"]) == {"secretbox first"}
    assert (before["stale"], before["unreadable"]) == (0, 0)
    assert "secretbox first: " in mooring.done("secrets-encryption", "status")

    place.write_bytes(b"resources: [")
    failure = 'apiserver_encryption_config_controller_automatic_reloads_total{apiserver_id_hash="sha256:'
    eventually(lambda: metric(server, failure))
    eventually(lambda: "is not valid YAML" in server.log)
    assert secrets_of(status())["writes"] == "secretbox first"
    place.write_bytes(first)

    command = ("-m", "mooring", "secrets-encryption", "rotate", "--yes", "--encryption-provider-config", str(place))
    with (tmp_path / "rotate.log").open("wb") as log:
        interrupted = forkserver.Process(command, stdout=log, stderr=log)
    eventually(lambda: place.with_name("encryption.yaml.rotation").exists())
    interrupted.send_signal(signal.SIGKILL)
    interrupted.wait()

    done = mooring("secrets-encryption", "rotate", "--yes", "--encryption-provider-config", str(place))
    assert done.code == 0, done.all + server.log[-3000:]
    assert "of an interrupted rotation" in done.err
    after = secrets_of(status())
    key = after["writes"].removeprefix("secretbox ")
    assert key.startswith("key-20")
    assert after["values"] == {f"secretbox {key}": sum(before["values"].values())}
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert sorted(one.name for one in tmp_path.iterdir() if "encryption" in one.name) == ["encryption.yaml"]
    assert b"first" not in place.read_bytes()

    async def read(client: ClusterClient) -> list[Any]:
        return [one["data"]["key"] for one in (await client.list("secrets", "default")).items]

    assert len(server.run(read)) == COUNT
    assert "cannot be decrypted" not in server.log
