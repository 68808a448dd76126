"""Snapshots of a store with encryption at rest: of the server and of the command, neither has the content of a Secret."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from mooring.clock import SystemClock
from mooring.controlplane.configuration import server_config
from mooring.controlplane.parts.foundation import open_registry
from mooring.controlplane.snapshots import entries, save
from tests.support.commandline import CommandLine, mooring
from tests.support.encryption import entry, file, local

__all__ = ["mooring"]
KEY = "/registry/secrets/default/a"
CONTENT = b"c2VjcmV0LXZhbHVl"
SECRET = (
    b'{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a","namespace":"default"},"data":{"a":"%s"}}' % CONTENT
)


def test_encrypted_values_stay_encrypted(tmp_path: Path, mooring: CommandLine) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_bytes(file(entry("secrets", local("aesgcm", "key1"))))
    keys.chmod(0o600)
    config = server_config(data_dir=str(tmp_path), encryption_provider_config=str(keys))
    served, commanded = tmp_path / "a.snapshot", tmp_path / "b.snapshot"

    async def scenario() -> list[bytes]:
        async with open_registry(config, SystemClock(), os.urandom) as parts:
            await parts.storage.create(KEY, SECRET)
            await save(parts.stored, served, SystemClock(), compressed=False)
        return [one.value async for part in entries(served) for one in part if one.key == KEY]

    (value,) = asyncio.run(scenario())
    assert value.startswith(b"k8s:enc:aesgcm:v1:key1:")
    mooring.done("snapshot", "save", str(commanded), "--data-dir", str(tmp_path), "--snapshot-compress=false")
    for path in (served, commanded):
        assert value in path.read_bytes()
        assert CONTENT not in path.read_bytes()
