"""Files of the join tokens in a data directory, at a start and while the server runs."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from mooring.controlplane.configuration import ServerConfig, server_config
from mooring.controlplane.sharedkeys.joining import known_answer
from mooring.controlplane.sharedkeys.start import prepare_keys
from mooring.controlplane.sharedkeys.tokenfile import LOOK_SECONDS, JoinTokenFiles
from mooring.errors import ConfigError
from mooring.pki.pem import RootCa
from mooring.trust.k3s.token import K3sToken, parse_token
from mooring.trust.sharedkeys import envelope
from mooring.trust.sharedkeys.servertoken import parse_token as parse_server_token
from tests.support.manualclock import ManualClock
from tests.support.testca import ThrowawayCA

AGENT = "agent-agent-agent-agent"
OTHER = "f" * 32


@pytest.fixture(autouse=True)
def _cheap_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "N", 16)


def config_of(tmp_path: Path, **settings: Any) -> ServerConfig:
    return server_config(
        data_dir=str(tmp_path / "data"), detected_addresses=("192.0.2.1",), **{"k3s_supervisor": True, **settings}
    )


def start(config: ServerConfig) -> bytes:
    """Prepare a start. Return the bundle that the server will serve."""
    return prepare_keys(config, ManualClock(), os.urandom).key_store.serving_ca_pem


def token(tmp_path: Path, name: str = "token") -> K3sToken:
    return parse_token((tmp_path / "data/server" / name).read_bytes().strip())


def test_the_first_start_makes_a_token_in_the_form_of_k3s(tmp_path: Path) -> None:
    bundle = start(config_of(tmp_path))
    found, folder = token(tmp_path), tmp_path / "data/server"
    assert (found.ca_hash, found.username) == (sha256(bundle).hexdigest(), "server")
    assert stat.S_IMODE((folder / "token").stat().st_mode) == 0o600
    assert {(folder / name).readlink() for name in ("node-token", "agent-token")} == {Path("token")}
    assert parse_server_token((folder / "token").read_bytes()) == found.password


@pytest.mark.parametrize("in_files", [True, False])
def test_short_tokens_of_k3s_are_used_with_a_warning(
    tmp_path: Path, in_files: bool, caplog: pytest.LogCaptureFixture
) -> None:
    given: dict[str, Any] = {"server_token": "ab", "agent_token": "cd"}
    if in_files:
        (tmp_path / "server").write_text("ab\n")
        (tmp_path / "agent").write_text("cd\n")
        given = {"server_token_file": str(tmp_path / "server"), "agent_token_file": str(tmp_path / "agent")}
        with pytest.raises(ConfigError, match="--allow-short-server-token accepts a shorter one"):
            start(config_of(tmp_path, **given))
    start(config_of(tmp_path, allow_short_server_token=True, **given))
    for name, expected in (("token", b"ab"), ("agent-token", b"cd")):
        password = token(tmp_path, name).password
        assert password is not None
        assert password.reveal() == expected
    told = [record.getMessage() for record in caplog.records if "fewer than 16 characters" in record.getMessage()]
    assert [text.split(" has ")[0] for text in told] == ["the server token", "the agent token"]


def test_long_tokens_cause_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    start(config_of(tmp_path, allow_short_server_token=True))
    assert not [record for record in caplog.records if "fewer than" in record.getMessage()]


def test_a_second_start_changes_nothing(tmp_path: Path) -> None:
    start(config_of(tmp_path))
    before = {path.name: path.lstat().st_ino for path in (tmp_path / "data/server").iterdir()}
    start(config_of(tmp_path))
    assert {path.name: path.lstat().st_ino for path in (tmp_path / "data/server").iterdir()} == before


@pytest.mark.parametrize(
    "settings", [{}, {"shared_keys": "files"}, {"server_token": OTHER}, {"shared_keys": "files", "server_token": OTHER}]
)
def test_there_is_always_a_token(tmp_path: Path, settings: dict[str, str]) -> None:
    start(config_of(tmp_path, **settings))
    password = token(tmp_path).password
    assert password is not None
    assert len(password.reveal()) == 32
    if "server_token" in settings:
        assert password.reveal() == OTHER.encode()


def test_without_the_supervisor_there_is_none(tmp_path: Path) -> None:
    start(config_of(tmp_path, k3s_supervisor=False))
    assert [path.name for path in (tmp_path / "data/server").iterdir()] == ["shared-keys.json"]


def test_a_token_of_an_earlier_start_stays(tmp_path: Path) -> None:
    start(config_of(tmp_path, server_token=OTHER))
    start(config_of(tmp_path))
    assert token(tmp_path).password == parse_server_token(OTHER.encode())


def test_an_agent_token_has_a_file_of_its_own(tmp_path: Path) -> None:
    start(config_of(tmp_path))
    start(config_of(tmp_path, agent_token=AGENT))
    found = token(tmp_path, "agent-token")
    assert (found.username, found.ca_hash) == ("node", token(tmp_path).ca_hash)
    assert found.password is not None
    assert found.password.reveal() == AGENT.encode()
    start(config_of(tmp_path))
    assert (tmp_path / "data/server/agent-token").readlink() == Path("token")


def test_a_link_that_a_killed_process_left_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / "data/server"
    folder.mkdir(parents=True, mode=0o700)
    (folder / ".node-token.link").symlink_to("token")
    (folder / "node-token").write_text("of another program")
    start(config_of(tmp_path))
    assert (folder / "node-token").readlink() == Path("token")
    assert not (folder / ".node-token.link").is_symlink()


def test_a_damaged_token_is_no_reason_for_another_one(tmp_path: Path) -> None:
    folder = tmp_path / "data/server"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "token").write_text("short\n")
    with pytest.raises(ConfigError, match="server/token: a server token is one line"):
        start(config_of(tmp_path))
    assert (folder / "token").read_text() == "short\n"


BAD_ANSWERS = {
    "empty": b"",
    "a list": b"[]",
    "brackets without an end": b'{"a":' + b"[" * 100_000,
    "of another server": b'{"server": "https://b:6443", "etcd_servers": [], "etcd_prefix": "/"}',
}


@pytest.mark.parametrize("content", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_an_answer_that_cannot_be_used_is_asked_for_again(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "joined.json").write_bytes(content)
    assert known_answer(tmp_path / "joined.json", "https://a:6443") is None


# -- while the server runs -------------------------------------------------------------------------------------------


def running(
    tmp_path: Path, test: Callable[[RootCa, Callable[[], Awaitable[None]]], Awaitable[None]], **settings: Any
) -> None:
    """Start, and run `test` with the bundle in force and a function that lets the server look once."""

    async def body() -> None:
        config, clock = config_of(tmp_path, **settings), ManualClock()
        root_ca = RootCa(await asyncio.to_thread(start, config))
        task = asyncio.create_task(JoinTokenFiles(config).run(root_ca, clock))

        async def look() -> None:
            await clock.advance(LOOK_SECONDS)
            while not clock.sleepers:
                await asyncio.sleep(0.001)

        await look()
        try:
            await test(root_ca, look)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(body())


def test_another_bundle_gives_another_hash(tmp_path: Path) -> None:
    async def test(root_ca: RootCa, look: Callable[[], Awaitable[None]]) -> None:
        root_ca.replace(ThrowawayCA("another").certificate_pem)
        before = token(tmp_path)
        await look()
        found = token(tmp_path)
        assert found.ca_hash == sha256(root_ca.pem).hexdigest() == token(tmp_path, "agent-token").ca_hash
        assert found.password == before.password

    running(tmp_path, test, agent_token=AGENT)


def test_a_token_that_another_part_wrote_gets_its_hash(tmp_path: Path) -> None:
    async def test(root_ca: RootCa, look: Callable[[], Awaitable[None]]) -> None:
        (tmp_path / "data/server/token").write_text(f"{OTHER}\n")
        await look()
        found = token(tmp_path)
        assert found.ca_hash == sha256(root_ca.pem).hexdigest()
        assert found.password == parse_server_token(OTHER.encode())

    running(tmp_path, test)


def test_a_hash_that_another_worker_wrote_stays(tmp_path: Path) -> None:
    async def test(root_ca: RootCa, look: Callable[[], Awaitable[None]]) -> None:
        newer = f"K10{'5' * 64}::server:{OTHER}\n"
        (tmp_path / "data/server/token").write_text(newer)
        await look()
        await look()
        assert (tmp_path / "data/server/token").read_text() == newer

    running(tmp_path, test)


def test_a_file_that_cannot_be_used_is_told_and_the_server_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agents = tmp_path / "agents"
    agents.write_text(AGENT)

    async def test(root_ca: RootCa, look: Callable[[], Awaitable[None]]) -> None:
        agents.write_text("short")
        await look()
        assert "could not be written: agent-token-file:" in caplog.text
        agents.write_text(OTHER)
        await look()
        assert token(tmp_path, "agent-token").password == parse_server_token(OTHER.encode())

    running(tmp_path, test, agent_token_file=str(agents))
