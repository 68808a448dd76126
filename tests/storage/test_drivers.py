"""The table of storage drivers: the store of each URL."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mooring.clock import SystemClock
from mooring.errors import ConfigError
from mooring.storage.drivers import open_storage
from mooring.storage.etcd.driver import EtcdStorage
from mooring.storage.memory import MemoryStorage
from mooring.storage.sqlite.driver import SqliteStorage


def test_memory_is_a_store_in_memory() -> None:
    assert isinstance(open_storage("memory:", SystemClock()), MemoryStorage)


@pytest.mark.parametrize("form", ["sqlite:{}", "sqlite://{}"])
def test_sqlite_is_a_store_in_the_file_named(tmp_path: Path, form: str) -> None:
    path = tmp_path / "a directory?" / "100%#.db"

    async def scenario() -> None:
        store = open_storage(form.format(path), SystemClock())
        assert isinstance(store, SqliteStorage)
        await store.open()
        await store.create("/a", b"")
        await store.close()

    asyncio.run(scenario())
    assert path.stat().st_size > 0
    assert [file.name for file in path.parent.iterdir()] == ["100%#.db"]


@pytest.mark.parametrize("url", ["etcd:http://a:2379", "etcd:https://a:2379,https://[::1]:2379/"])
def test_etcd_is_a_store_in_the_members_named(url: str) -> None:
    assert isinstance(open_storage(url, SystemClock()), EtcdStorage)


def test_etcd_without_its_libraries_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooring.storage.drivers.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"install mooring\[etcd\]"):
        open_storage("etcd:http://a:2379", SystemClock())


@pytest.mark.parametrize(
    "url", ["", "mooring.db", "/var/lib/x.db", "postgres://x", "memory", "sqlite", "SQLITE:x", ":x"]
)
def test_a_url_no_driver_takes_is_refused_with_the_schemes_there_are(url: str) -> None:
    with pytest.raises(ConfigError, match="must start with one of etcd:, memory:, sqlite:"):
        open_storage(url, SystemClock())


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory:x", "takes nothing after the colon"),
        ("sqlite:", "needs the path of a file"),
        ("etcd:", "needs client URLs"),
        ("etcd:localhost", "give client URLs"),
        ("etcd:https://user:secret@a:2379", "a scheme, a host and a port only"),
        ("etcd:https://a:2379,http://b:2379", "URLs of one scheme"),
    ],
)
def test_a_url_that_its_driver_cannot_use_is_refused_with_the_reason(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_storage(url, SystemClock())
