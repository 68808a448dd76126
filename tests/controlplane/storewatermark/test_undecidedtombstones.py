"""A store of which a part cannot be read: what had ended in that part is not settled."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mooring.clock import SystemClock
from mooring.controlplane.parts.foundation import RegistryParts
from mooring.controlplane.storewatermark.storewatermark import StoreWatermark
from mooring.controlplane.storewatermark.watermarkfile import FILE_NAME
from mooring.storage.contract import Storage, StoredChange
from mooring.storage.drivers import open_storage
from mooring.trust.bootstraptoken.token import parse_token
from mooring.trust.bootstraptoken.tokensecret import TokenRecord, to_secret
from mooring.trust.storewatermark import Watermark
from tests.controlplane.storewatermark.test_storewatermark import compared, create, delete, in_registry, listed

TOKEN = "/registry/secrets/kube-system/bootstrap-token-abcdef"
NODE = "/registry/minions/n1"
IDENTITY = "/registry/mooring.dev/nodeidentities/n1"


async def cut(directory: Path, key: str) -> None:
    """Cut the value of an object in the store."""
    storage = open_storage(f"sqlite:{directory}/mooring.db", SystemClock())
    await storage.open()
    found = await storage.get(key)
    assert found is not None
    await storage.update(key, found.value[:-3], expected=found.revision)
    await storage.close()


@pytest.mark.parametrize(
    ("key", "tombstone"),
    [
        pytest.param(TOKEN, "token.abcdef", id="token"),
        pytest.param(NODE, "node.n1", id="Node"),
        pytest.param(IDENTITY, "node.n1", id="NodeIdentity"),
    ],
)
def test_what_cannot_be_read_in_a_restored_store_waits(tmp_path: Path, key: str, tombstone: str) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()

    async def begin(parts: RegistryParts, watermark: StoreWatermark) -> None:
        record = TokenRecord(parse_token("abcdef.0123456789abcdef"), expires=None, usages=("authentication",))
        await create(parts, "secrets", to_secret(record), "kube-system")
        if key == IDENTITY:
            await create(parts, "nodeidentities", {"metadata": {"name": "n1"}})
        else:
            await create(parts, "nodes", {"metadata": {"name": "n1"}})

    async def end_them(parts: RegistryParts, watermark: StoreWatermark) -> None:
        if key == IDENTITY:
            await create(parts, "nodes", {"metadata": {"name": "n1"}})
        await delete(parts, "nodes", "n1")
        await delete(parts, "secrets", "bootstrap-token-abcdef", "kube-system")

    in_registry(tmp_path, begin)
    for file in tmp_path.glob("mooring.db*"):
        shutil.copy(file, copy)
    in_registry(tmp_path, end_them)
    for file in tmp_path.glob("mooring.db*"):
        file.unlink()
    for file in copy.iterdir():
        shutil.copy(file, tmp_path)
    asyncio.run(cut(tmp_path, key))

    async def judged(parts: RegistryParts, watermark: StoreWatermark) -> None:
        await watermark.judge()
        await parts.registry.reader.fresh()
        assert tombstone in listed(parts)
        assert not watermark.is_settled

    in_registry(tmp_path, judged)


class SilentStorage:
    """A store whose changes do not come, as on a disk that hangs."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    async def watch(self, prefix: str, *, after: int) -> AsyncIterator[tuple[StoredChange, ...]]:
        await asyncio.Event().wait()
        yield ()


def test_a_revocation_that_is_missing_counts_as_lost_where_the_changes_are_not_read_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def revoke(parts: RegistryParts, watermark: StoreWatermark) -> None:
        spec = {"serialNumber": "1f"}
        await create(parts, "certificaterevocations", {"metadata": {"name": "serial-1f"}, "spec": spec})

    async def judged(parts: RegistryParts, watermark: StoreWatermark) -> None:
        (tmp_path / FILE_NAME).write_bytes(kept)
        monkeypatch.setattr("mooring.controlplane.storewatermark.olderstore.READ_WITHIN", 0.01)
        silent: Any = SilentStorage(parts.storage)
        other = await compared(parts, tmp_path, silent)
        assert not other.is_settled
        assert "gave none within" in caplog.text

    in_registry(tmp_path, revoke)
    kept = (tmp_path / FILE_NAME).read_bytes()
    with closing(sqlite3.connect(tmp_path / "mooring.db")) as database, database:
        assert database.execute("DELETE FROM live WHERE key LIKE '%/serial-1f'").rowcount == 1
    in_registry(tmp_path, judged)


def test_a_rollover_that_cannot_be_read_keeps_the_gate_closed_until_it_can_be(tmp_path: Path) -> None:
    key = "/registry/mooring.dev/certificateauthorityrollovers/cluster-ca"
    whole: list[bytes] = []

    async def begin(parts: RegistryParts, watermark: StoreWatermark) -> None:
        rollover = {"metadata": {"name": "cluster-ca"}, "spec": {"phase": "TrustBoth"}}
        uid = (await create(parts, "certificateauthorityrollovers", rollover))["metadata"]["uid"]
        found = await parts.storage.get(key)
        assert found is not None
        whole.extend((found.value, uid.encode()))

    async def judged(parts: RegistryParts, watermark: StoreWatermark) -> None:
        await watermark.judge()
        await parts.registry.reader.fresh()
        assert [one.rpartition("-")[0] for one in listed(parts)] == ["more.rollover"]
        found = await parts.storage.get(key)
        assert found is not None
        await parts.storage.update(key, whole[0], expected=found.revision)
        await parts.registry.reader.fresh()
        await watermark.judge()
        await parts.registry.reader.fresh()
        assert watermark.is_settled
        assert listed(parts) == {}

    in_registry(tmp_path, begin)
    value = {"uid": whole[1].decode(), "phase": "TrustBoth", "reached": 0}
    (tmp_path / FILE_NAME).write_bytes(Watermark(5, "another", tombstones={"rollover": {"cluster-ca": value}}).encode())
    asyncio.run(cut(tmp_path, key))
    in_registry(tmp_path, judged)
