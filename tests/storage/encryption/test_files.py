"""Files of the store after its values were encrypted and old revisions compacted: no plain value is left in them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from mooring.clock import SystemClock
from mooring.controlplane.encryption import stored_resources
from mooring.storage.encryption.providers import Providers
from mooring.storage.encryption.storage import EncryptedStorage
from mooring.storage.etcd.keyspace import Keyspace
from mooring.storage.sqlite.driver import SqliteStorage
from mooring.trust.encryption.configuration import NOTHING, parse
from mooring.trust.encryption.transformer import UnreadableError
from tests.support import etcd
from tests.support.encryption import IDENTITY, entry, file, local
from tests.support.storagedrivers import open_etcd

MARK = b"plain-secret-mark"
SIZES = (10, 900, 5_000, 100_000)
"""Bytes of values: in a page, nearly a page, and in overflow pages."""


def test_a_thief_of_the_files_finds_no_secret(tmp_path: Path) -> None:
    def found() -> list[str]:
        return sorted(one.name for one in tmp_path.iterdir() if MARK in one.read_bytes())

    async def body() -> None:
        providers = Providers(NOTHING, SystemClock(), os.urandom)
        store = EncryptedStorage(SqliteStorage(tmp_path / "mooring.db", SystemClock()), providers, stored_resources())
        await store.open()
        entries = []
        for number in range(200):
            value = MARK + str(number).encode() + b"." * SIZES[number % len(SIZES)] + MARK
            entries.append(await store.create(f"/registry/secrets/default/{number:03}", value))
        for number in range(50, 60):
            await store.delete(entries[number].key, expected=entries[number].revision)
        assert found()
        await providers.replace(parse(file(entry("secrets", local("aesgcm", "one"), IDENTITY)), "f"))
        for one in entries[:50] + entries[60:]:
            await store.update(one.key, one.value, expected=one.revision)
        await store.compact(await store.revision())
        assert found() == []
        assert (await store.get(entries[0].key)) is not None
        await store.close()
        assert found() == []

    asyncio.run(body())


@pytest.mark.skipif(bool(etcd.MISSING), reason=etcd.MISSING)
def test_a_thief_of_etcd_finds_no_secret_and_its_prefix_is_authenticated(tmp_path: Path) -> None:
    key = "/registry/secrets/default/a"

    async def body(cluster: etcd.Etcd) -> None:
        providers = Providers(parse(file(entry("secrets", local("aesgcm", "one"))), "f"), SystemClock(), os.urandom)
        inner, names = open_etcd(cluster, "/other"), Keyspace("/other").encode
        store = EncryptedStorage(inner, providers, stored_resources(), names)
        await store.open()
        first = await store.create(key, MARK)
        assert (await store.get(key)) == first
        raw = await inner.get(key)
        assert raw is not None
        (resource,) = providers.transformers.configuration.providers
        assert providers.open_now(resource, raw.value, b"/other/secrets/default/a") == (MARK, False)
        with pytest.raises(UnreadableError):
            providers.open_now(resource, raw.value, key.encode())
        moved = await inner.update(key, providers.seal(resource, MARK, key.encode()), expected=raw.revision)
        assert (await store.get(key)) == first.__class__(key, MARK, moved.revision, first.created)
        assert await store.is_stale(key)
        await store.close()

    with etcd.running(tmp_path) as cluster:
        asyncio.run(body(cluster))
    assert not [one for one in tmp_path.rglob("*") if one.is_file() and MARK in one.read_bytes()]
