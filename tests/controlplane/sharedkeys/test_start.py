"""Start of servers on one SQLite file: keys are shared before anything serves, in this process or in a child."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from mooring.controlplane.configuration import ServerConfig, server_config
from mooring.controlplane.sharedkeys.start import in_child, prepare_keys
from mooring.errors import ConfigError, StorageError
from mooring.trust.sharedkeys import envelope
from tests.support.manualclock import ManualClock

Run = Callable[[Coroutine[Any, Any, None]], None]
RUNS: dict[str, Run] = {"in this process": asyncio.run, "in a child": in_child}


@pytest.fixture(autouse=True)
def _cheap_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "N", 16)


def config_of(tmp_path: Path, name: str, **settings: str) -> ServerConfig:
    store = {"storage": f"sqlite:{tmp_path}/mooring.db"}
    return server_config(data_dir=str(tmp_path / name), detected_addresses=("192.0.2.1",), **{**store, **settings})


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_two_servers_have_one_ca(tmp_path: Path, run: Run) -> None:
    first = prepare_keys(config_of(tmp_path, "first"), ManualClock(), os.urandom, run)
    token = str(tmp_path / "first/server/token")
    second = prepare_keys(config_of(tmp_path, "second", server_token_file=token), ManualClock(), os.urandom, run)
    assert first.key_store.ca.trusted == second.key_store.ca.trusted
    assert first.key_store.serving_chain[0] != second.key_store.serving_chain[0]


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_refusal_is_told(tmp_path: Path, run: Run) -> None:
    prepare_keys(config_of(tmp_path, "first"), ManualClock(), os.urandom, run)
    with pytest.raises(ConfigError, match="give --server-token-file"):
        prepare_keys(config_of(tmp_path, "second"), ManualClock(), os.urandom, run)


def test_a_server_with_a_store_in_memory_opens_it_later(tmp_path: Path) -> None:
    config = config_of(tmp_path, "first", storage="memory:")
    prepare_keys(config, ManualClock(), os.urandom, lambda work: pytest.fail("the store was opened"))


def test_errors_of_a_child_are_raised_here(capfd: pytest.CaptureFixture[str]) -> None:
    async def refused() -> None:
        raise StorageError("the disk is full")

    async def broken() -> None:
        raise LookupError("a mistake")

    with pytest.raises(ConfigError, match="the disk is full"):
        in_child(refused())
    with pytest.raises(ConfigError, match="see the log above"):
        in_child(broken())


def test_a_signal_to_a_child_is_not_counted_here() -> None:
    async def signalled() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    handler, before = signal.signal(signal.SIGTERM, lambda *_: None), signal.set_wakeup_fd(writing)
    try:
        in_child(signalled())
        with pytest.raises(BlockingIOError):
            os.read(reading, 1)
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGTERM, handler)
        os.close(reading)
        os.close(writing)
