"""Drivers and helpers that the scenarios of the storage conformance suite share.

A driver joins the suite by one row of `MAKERS`; `tests/storage/conftest.py` runs every scenario on each of them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest

from mooring.clock import SystemClock
from mooring.settings.storage import StorageSettings
from mooring.storage.contract import Page, Storage, StoredChange
from mooring.storage.encryption.providers import Providers
from mooring.storage.encryption.storage import EncryptedStorage
from mooring.storage.etcd.driver import EtcdStorage
from mooring.storage.memory import MemoryStorage
from mooring.storage.sqlite.driver import SqliteStorage
from mooring.trust.encryption.configuration import GroupResource, parse
from tests.support import etcd
from tests.support.encryption import entry, file, local


class _EveryKey(dict[str, GroupResource]):
    """Resources by prefix: every key belongs to Secrets."""

    def get(self, key: str, default: Any = None) -> GroupResource:
        return GroupResource("", "secrets")


def _encrypted(inner: Storage) -> Storage:
    configuration = parse(file(entry("secrets", local("aesgcm", "key1"))), "test")
    return EncryptedStorage(inner, Providers(configuration, SystemClock(), os.urandom), _EveryKey())


def _etcd(directory: Path) -> Storage:
    if etcd.MISSING:
        pytest.skip(etcd.MISSING)
    return open_etcd(etcd.shared(), etcd.fresh_prefix())


def open_etcd(cluster: etcd.Etcd, prefix: str, **settings: Any) -> EtcdStorage:
    """Return a store in a cluster, not opened yet."""
    urls = cluster.endpoints.split(",")
    return EtcdStorage(urls, StorageSettings(etcd_prefix=prefix, **settings), SystemClock())


MAKERS: dict[str, Callable[[Path], Storage]] = {
    "etcd": _etcd,
    "memory": lambda directory: MemoryStorage(),
    "encrypted": lambda directory: _encrypted(MemoryStorage()),
    "sqlite": lambda directory: SqliteStorage(directory / "mooring.db", SystemClock()),
}
Scenario = Callable[[Storage], Awaitable[None]]
Run = Callable[[Scenario], None]


async def take(watch: AsyncIterator[tuple[StoredChange, ...]], count: int) -> list[StoredChange]:
    """Return the next `count` changes; more than that in the same batch fails. Progress notifications are left out."""
    found: list[StoredChange] = []
    while len(found) < count:
        found += [change for change in await asyncio.wait_for(anext(watch), timeout=10) if not change.is_progress]
    assert len(found) == count
    return found


def closing(watch: AsyncIterator[tuple[StoredChange, ...]]) -> aclosing[Any]:
    return aclosing(cast("Any", watch))


def keys(page: Page) -> list[str]:
    return [entry.key for entry in page.entries]
