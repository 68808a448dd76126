"""`kill -9` of `mooring token rotate` between any two changes of its disk: the cluster opens with one of the two tokens.

With `--agent`: after the next start the rotation is whole, or did not happen.

Invariants: the data directory opens the row by itself, and then has that token as its present one; a new server opens it with that
token, too; the keys are the same; nothing is left of the rotation.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from mooring.clock import SystemClock
from mooring.controlplane.configuration import ServerConfig, server_config
from mooring.controlplane.sharedkeys.files import SharedKeyFiles
from mooring.controlplane.sharedkeys.share import SharedKeys
from mooring.controlplane.sharedkeys.tokenfile import ServerTokenFile
from mooring.secret import Secret
from mooring.storage.keyspace import FORMAT_LEVEL
from mooring.storage.sqlite.driver import SqliteStorage
from mooring.trust.sharedkeys.servertoken import NAME as AGENT_TOKENS
from tests.support import forkserver
from tests.support.commandline import CommandLine, mooring
from tests.support.killable import DYING

__all__ = ["mooring"]
OLD = "0123456789abcdef0123456789abcdef"
PATIENCE = 60.0


def refuse_new_keys(root: Path) -> None:
    raise AssertionError(f"keys are made in {root}")


def opened(config: ServerConfig, store: Path) -> tuple[Mapping[str, Secret], Secret | None]:
    """Start a server as far as its keys. Return them, and its present token."""

    async def settle() -> None:
        storage = SqliteStorage(store, SystemClock())
        await storage.open()
        try:
            await SharedKeys(config, storage, os.urandom, SystemClock()).settle(refuse_new_keys)
        finally:
            await storage.close()

    asyncio.run(settle())
    return SharedKeyFiles(Path(config.data_dir)).key_set().files, ServerTokenFile(config).kept()


@pytest.fixture
def whole(tmp_path: Path, mooring: CommandLine) -> Path:
    """A data directory whose keys are sealed with the old token."""
    data = tmp_path / "whole"
    mooring.done(
        "init", "--data-dir", str(data), "--bind-address", "127.0.0.1", "--token", "", "--server-token", OLD
    )  # fmt: skip
    return data


@pytest.mark.crash
def test_killed_between_any_two_changes_of_its_disk(tmp_path: Path, whole: Path) -> None:
    """Without a grace, and with a token that nobody else knows: tests/controlplane/sharedkeys has the other cases."""
    before = SharedKeyFiles(whole).key_set().files
    for n in range(1, 100):
        data = tmp_path / str(n)
        shutil.copytree(whole, data)
        command = ["-c", DYING, str(n), "token", "rotate", "--data-dir", str(data), "--grace", "0"]
        process = forkserver.Process(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = process.communicate(timeout=PATIENCE)
        killed = process.returncode == -signal.SIGKILL
        assert killed or process.returncode == 0, output

        config = server_config(data_dir=str(data))
        keys, token = opened(config, data / "mooring.db")
        assert keys == before
        assert token is not None
        other = tmp_path / f"{n}-other"
        further = server_config(
            data_dir=str(other), storage=f"sqlite:{data}/mooring.db", server_token=token.reveal().decode()
        )
        assert opened(further, data / "mooring.db") == (before, token)
        assert not (data / "server/next-token").exists()
        if not killed:
            assert token != Secret(OLD)
            assert n > 8, "there are more changes than that"
            return
    raise AssertionError("a rotation does not change its disk a hundred times")


def raise_level(store: Path) -> None:
    """Raise the level of the format of a store that no server has open, as the first server does after some seconds."""

    async def session() -> None:
        storage = SqliteStorage(store, SystemClock())
        await storage.open()
        try:
            entry = await storage.get(FORMAT_LEVEL)
            assert entry is not None
            await storage.update(FORMAT_LEVEL, b'{"level": 2}', expected=entry.revision)
        finally:
            await storage.close()

    asyncio.run(session())


@pytest.mark.crash
def test_a_rotation_of_the_agent_token_is_killed_between_any_two_changes_of_its_disk(
    tmp_path: Path, mooring: CommandLine
) -> None:
    whole = tmp_path / "whole"
    mooring.done(
        "init", "--data-dir", str(whole), "--bind-address", "127.0.0.1", "--token", "", "--server-token", OLD,
        "--k3s-supervisor", "--agent-token", "agent-agent-agent-agent",
    )  # fmt: skip
    raise_level(whole / "mooring.db")
    before, happened = SharedKeyFiles(whole).key_set().files, []
    for n in range(1, 100):
        data = tmp_path / str(n)
        shutil.copytree(whole, data, symlinks=True)
        command = ["-c", DYING, str(n), "token", "rotate", "--agent", "--data-dir", str(data), "--grace", "0"]
        process = forkserver.Process(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = process.communicate(timeout=PATIENCE)
        killed = process.returncode == -signal.SIGKILL
        assert killed or process.returncode == 0, output

        keys, token = opened(server_config(data_dir=str(data)), data / "mooring.db")
        assert token == Secret(OLD)
        assert {name: one for name, one in keys.items() if name != AGENT_TOKENS} == before
        happened.append(AGENT_TOKENS in keys)
        if not killed:
            assert happened == sorted(happened), "from one change on it did, and not before"
            assert set(happened) == {False, True}
            return
    raise AssertionError("a rotation does not change its disk a hundred times")
