"""Rotation of the agent token of several servers over one store: who learns it, what ends, and what brings nothing back."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mooring.client.files import write_atomic
from mooring.controlplane.keystore import make_shared_keys
from mooring.controlplane.sharedkeys import files, tokenfile
from mooring.controlplane.sharedkeys.tokenfile import JoinTokenFiles
from mooring.errors import ConfigError, StorageError
from mooring.secret import Secret
from mooring.storage.formatlevel import AGENT_TOKENS_LEVEL
from mooring.storage.keyspace import FORMAT_LEVEL
from mooring.storage.memory import MemoryStorage
from mooring.trust.k3s.acceptedtokens import AcceptedTokens, digest
from mooring.trust.k3s.token import parse_token
from mooring.trust.sharedkeys import envelope
from mooring.trust.sharedkeys.envelope import KEY
from mooring.trust.sharedkeys.serverjoin import KnownTokenError
from mooring.trust.sharedkeys.servertoken import AgentRotationRefusedError, decode_agent_tokens
from tests.controlplane.sharedkeys.test_share import CLOCK, KilledError, Server, replace_sa_key, scenario

AGENT, NEW, NEXT = "agent-agent-agent-agent", "fedcba9876543210fedcba9876543210", "0f" * 16
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _cheap_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "N", 16)


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


def bundle(server: Server) -> bytes:
    return (server.root / "pki/ca.crt").read_bytes()


async def start(server: Server) -> Server:
    await server.start()
    JoinTokenFiles(server.config).write(bundle(server))
    return server


async def two(root: Path, storage: MemoryStorage, level: int = AGENT_TOKENS_LEVEL) -> tuple[Server, Server]:
    """Return two servers of one cluster with one agent token, each in a setting."""
    await storage.open()
    await storage.create(FORMAT_LEVEL, json.dumps({"level": level}).encode())
    flags: dict[str, Any] = {"k3s_supervisor": True, "agent_token": AGENT}
    first = await start(Server(root / "first", storage, **flags))
    token = parse_token(first.token).password
    assert token is not None
    return first, await start(Server(root / "second", storage, server_token=token.reveal().decode(), **flags))


def accepted(server: Server) -> AcceptedTokens:
    """Return what the authenticator reads in a data directory."""
    found = decode_agent_tokens((server.root / "pki/agent-tokens.json").read_bytes())
    return AcceptedTokens(digest(Secret(server.token)), digest(found.token), (), found.former)


def judged(server: Server, password: str, seconds: int = 0) -> str:
    return accepted(server).judge("node", Secret(password), CLOCK.now() + timedelta(seconds=seconds))


def agent_token(server: Server) -> str:
    JoinTokenFiles(server.config).write(bundle(server), force=False)
    password = parse_token((server.root / "server/agent-token").read_bytes().strip()).password
    assert password is not None
    return password.reveal().decode()


@scenario
async def test_every_server_learns_the_new_token_and_ends_the_former_one_with_its_grace(
    tmp_path: Path, storage: MemoryStorage, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = await two(tmp_path, storage)
    server_token = first.token
    with caplog.at_level(logging.INFO):
        rotated = await first.keys.rotate_agent(Secret(NEW), HOUR)
    assert (rotated.grace_ends, rotated.made) == (CLOCK.now() + HOUR, None)
    assert "not the present" not in caplog.text
    assert await second.keys.follow()
    assert not await first.keys.follow()
    for server in (first, second):
        assert agent_token(server) == NEW
        assert (server.root / "pki/agent-tokens.json").stat().st_mode & 0o777 == 0o600
        assert [judged(server, NEW, 9999), judged(server, AGENT, 3599)] == ["accepted", "accepted"]
        assert judged(server, AGENT, 3600) == "rotated-agent-token"
        assert server.token == server_token, "the server token stays"
    assert "the one of --agent-token or --agent-token-file is not the present one" in caplog.text
    for secret in (AGENT, NEW, parse_token(server_token).password):
        text = secret if isinstance(secret, str) else secret.reveal().decode() if secret else ""
        assert text not in caplog.text
    entry = await storage.get(KEY)
    assert entry is not None
    assert NEW.encode() not in entry.value
    assert digest(Secret(NEW)).hex().encode() not in entry.value


@scenario
async def test_without_a_grace_the_former_token_ends_on_every_server_that_looks(
    tmp_path: Path, storage: MemoryStorage
) -> None:
    first, second = await two(tmp_path, storage)
    rotated = await first.keys.rotate_agent(None, timedelta())
    assert rotated.grace_ends is None
    assert rotated.made is not None
    await second.keys.follow()
    for server in (first, second):
        assert agent_token(server) == rotated.made.reveal().decode()
        assert judged(server, AGENT) == "rotated-agent-token"


@scenario
async def test_the_first_agent_token_replaces_the_server_token_for_agents(
    tmp_path: Path, storage: MemoryStorage
) -> None:
    await storage.open()
    await storage.create(FORMAT_LEVEL, b'{"level": 2}')
    server = await start(Server(tmp_path / "only", storage, k3s_supervisor=True))
    assert await server.keys.agent_tokens() is None
    password = parse_token(server.token).password
    assert password is not None
    await server.keys.rotate_agent(Secret(NEW), HOUR)
    found = await server.keys.agent_tokens()
    assert found is not None
    assert found.token == Secret(NEW)
    assert agent_token(server) == NEW
    token = password.reveal().decode()
    assert [judged(server, token, 3599), judged(server, token, 3600)] == ["accepted", "rotated-agent-token"]
    await server.keys.rotate_agent(Secret(NEXT), HOUR)
    assert [judged(server, one) for one in (token, NEW, NEXT)] == ["accepted"] * 3


@scenario
async def test_a_rotation_of_either_token_keeps_the_other(tmp_path: Path, storage: MemoryStorage) -> None:
    first, second = await two(tmp_path, storage)
    await first.keys.rotate_agent(Secret(NEW), HOUR)
    content = (first.root / "pki/agent-tokens.json").read_bytes()
    await second.keys.follow()
    await second.keys.rotate(Secret(NEXT), HOUR)
    terms = (second.root / "server/former-tokens.json").read_bytes()
    await first.keys.rotate_agent(None, HOUR)  # before it has followed
    assert parse_token(first.token).password == Secret(NEXT)
    assert (first.root / "server/former-tokens.json").read_bytes() == terms
    assert (second.root / "pki/agent-tokens.json").read_bytes() == content
    await second.keys.follow()
    await asyncio.gather(replace_sa_key(second))
    await second.again().start()  # stores the key of a ServiceAccount that an operator placed
    late = await Server(tmp_path / "late", storage, server_token=NEXT, k3s_supervisor=True).start()
    assert judged(late, NEW) == "accepted"
    assert (late.root / "pki/agent-tokens.json").read_bytes() == (first.root / "pki/agent-tokens.json").read_bytes()
    with pytest.raises(KnownTokenError, match="is an agent token of this cluster"):
        await first.keys.rotate(Secret(NEW), HOUR)


@scenario
async def test_a_server_that_is_given_another_agent_token_says_so_and_does_not_use_it(
    tmp_path: Path, storage: MemoryStorage, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = await two(tmp_path, storage)
    await first.keys.rotate_agent(Secret(NEW), timedelta())
    await second.again().start()  # it was off
    caplog.clear()
    assert agent_token(second) == NEW
    assert "it is not used; leave the flag out" in caplog.text
    assert AGENT not in caplog.text
    assert NEW not in caplog.text


@pytest.mark.parametrize("fault", ["removed", "of an earlier rotation"])
@scenario
async def test_a_file_that_was_changed_by_hand_brings_no_former_token_back(
    tmp_path: Path, storage: MemoryStorage, fault: str
) -> None:
    first, _ = await two(tmp_path, storage)
    await first.keys.rotate_agent(Secret(NEW), timedelta())
    file = first.root / "pki/agent-tokens.json"
    earlier = file.read_bytes()
    await first.keys.rotate_agent(Secret(NEXT), timedelta())
    if fault == "removed":
        file.unlink()
    else:
        file.write_bytes(earlier)
    revision = await storage.revision()
    await first.again().start()
    assert await storage.revision() == revision
    assert [judged(first, NEXT), judged(first, NEW)] == ["accepted", "rotated-agent-token"]


@scenario
async def test_a_store_from_an_earlier_backup_brings_no_former_token_back(
    tmp_path: Path, storage: MemoryStorage
) -> None:
    first, _ = await two(tmp_path, storage)
    backup = await storage.get(KEY)
    assert backup is not None
    await first.keys.rotate_agent(Secret(NEW), timedelta())
    present = await storage.get(KEY)
    assert present is not None
    await storage.update(KEY, backup.value, expected=present.revision)
    assert not await first.keys.follow()
    with pytest.raises(AgentRotationRefusedError, match="restored from an earlier backup: start a "):
        await first.keys.rotate_agent(Secret(NEXT), HOUR)
    await first.again().start()
    found = await first.again().keys.agent_tokens()
    assert found is not None
    assert found.token == Secret(NEW)


@scenario
async def test_a_store_that_an_earlier_version_may_read_is_not_changed(tmp_path: Path, storage: MemoryStorage) -> None:
    """Rows from before are read as they are, and get the file with the first rotation."""
    first, second = await two(tmp_path, storage, level=1)
    before = await storage.get(KEY)
    with pytest.raises(AgentRotationRefusedError, match="has level 1, and a rotated agent token needs level 2"):
        await first.keys.rotate_agent(Secret(NEW), HOUR)
    await second.again().start()
    await first.keys.follow()
    assert await storage.get(KEY) == before
    assert not (first.root / "pki/agent-tokens.json").exists()
    level = await storage.get(FORMAT_LEVEL)
    assert level is not None
    await storage.update(FORMAT_LEVEL, b'{"level": 2}', expected=level.revision)
    await first.keys.rotate_agent(Secret(NEW), HOUR)
    await second.keys.follow()
    assert [judged(second, one) for one in (AGENT, NEW)] == ["accepted", "accepted"]


@scenario
async def test_what_is_refused_changes_nothing(
    tmp_path: Path, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await two(tmp_path, storage)
    revision = await storage.revision()
    password = parse_token(first.token).password
    with pytest.raises(AgentRotationRefusedError, match="is a server token"):
        await first.keys.rotate_agent(password, HOUR)
    with pytest.raises(AgentRotationRefusedError, match="the present one"):
        await first.keys.rotate_agent(Secret(AGENT), HOUR)
    copied = Server(tmp_path / "copied", storage, shared_keys="files")
    with pytest.raises(ConfigError, match="replace --agent-token-file on each"):
        await copied.keys.rotate_agent(None, HOUR)
    (second.root / "server/agent-token").unlink()
    with pytest.raises(
        ConfigError,
        match="server/agent-token is missing: start the server of this data directory with --k3s-supervisor",
    ):
        await second.keys.rotate_agent(None, HOUR)

    async def lost(entry: object, row: object) -> bool:
        return False

    monkeypatch.setattr(first.keys, "_write_row", lost)
    with pytest.raises(StorageError, match="at the same time; try again"):
        await first.keys.rotate_agent(None, HOUR)
    assert await storage.revision() == revision
    assert agent_token(first) == AGENT


@scenario
async def test_a_claimed_store_has_no_agents(tmp_path: Path, storage: MemoryStorage) -> None:
    await storage.open()
    server = Server(tmp_path / "kept", storage)
    await server.keys.keep(lambda root: make_shared_keys(server.config, root, CLOCK.now(), os.urandom))
    with pytest.raises(AgentRotationRefusedError, match="start its server with --k3s-supervisor first"):
        await server.keys.rotate_agent(None, HOUR)


@scenario
async def test_a_rotation_that_is_killed_at_any_step_is_whole_or_did_not_happen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened = set()
    for number in range(1, 20):
        store = MemoryStorage()
        first, second = await two(tmp_path / str(number), store)
        left = number

        def step() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise KilledError

        update, write = store.update, write_atomic

        async def updated(key: str, value: bytes, *, expected: int, update: Any = update) -> Any:
            step()
            found = await update(key, value, expected=expected)
            step()
            return found

        def written(path: Path, data: bytes, write: Any = write) -> None:
            step()
            write(path, data)

        with monkeypatch.context() as patched:
            for module in (files, tokenfile):
                patched.setattr(module, "write_atomic", written)
            patched.setattr(store, "update", updated)
            try:
                await first.keys.rotate_agent(Secret(NEW), timedelta())
                assert left > 0
                break
            except KilledError:
                pass
        await second.keys.follow()
        await first.again().start()
        happened.add(changed := (second.root / "pki/agent-tokens.json").exists())
        for server in (first, second):
            assert agent_token(server) == (NEW if changed else AGENT)
            if changed:
                assert judged(server, AGENT) == "rotated-agent-token"
    assert number > 4
    assert happened == {False, True}
