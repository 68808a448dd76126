"""Servers with data directories of their own over one store: who makes the keys, who takes them, and who is refused."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ParamSpec

import msgspec
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mooring.controlplane.configuration import ServerConfig, server_config
from mooring.controlplane.keystore import make_shared_keys, prepare
from mooring.controlplane.sharedkeys import files, tokenfile
from mooring.controlplane.sharedkeys.share import FOLLOW_SECONDS, MAX_ATTEMPTS, SharedKeys, shares_keys
from mooring.errors import ConfigError, StorageError
from mooring.pki.keys import generate_key, private_key_pem, public_key_pem
from mooring.secret import Secret
from mooring.storage.memory import MemoryStorage
from mooring.trust.discovery.pins import pins_of
from mooring.trust.k3s.acceptedtokens import AcceptedTokens, decode_former, digest
from mooring.trust.sharedkeys import envelope
from mooring.trust.sharedkeys.envelope import KEY, WrongTokenError
from mooring.trust.sharedkeys.keyset import NAMES
from mooring.trust.sharedkeys.reconciliation import StoredCluster
from tests.support.manualclock import ManualClock, settle

SHARED = ("ca.crt", "ca.key", "sa.key", "sa.pub", "lineage.key", "lineage.pub")
TOKEN = "0123456789abcdef0123456789abcdef"
CLOCK = ManualClock()
P = ParamSpec("P")


def scenario(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class Server:
    """The keys of one server. A server without a token of its own makes one, or is refused."""

    def __init__(self, root: Path, storage: MemoryStorage, clock: ManualClock = CLOCK, **settings: Any) -> None:
        self.root, self.storage = root, storage
        self.config: ServerConfig = server_config(
            data_dir=str(root), storage="sqlite:/elsewhere/mooring.db", detected_addresses=("192.0.2.1",), **settings
        )
        self.keys = SharedKeys(self.config, storage, os.urandom, clock)

    def make_missing(self, root: Path) -> None:
        make_shared_keys(self.config, root, CLOCK.now(), os.urandom)

    async def start(self) -> Server:
        await self.keys.settle(self.make_missing)
        prepare(self.config, CLOCK.now(), os.urandom)
        return self

    def again(self) -> Server:
        """Return the server as another process, with what it kept."""
        return Server(self.root, self.storage)

    @property
    def token(self) -> str:
        return (self.root / "server/token").read_text().strip()

    def files(self) -> dict[str, bytes]:
        return {name: (self.root / "pki" / name).read_bytes() for name in NAMES if (self.root / "pki" / name).exists()}

    @property
    def pin(self) -> str:
        return str(pins_of(self.files()["ca.crt"])[0])


@pytest.fixture(autouse=True)
def _cheap_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "N", 16)


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def stopped_scrypt(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def stop() -> None:
        monkeypatch.setattr(envelope, "_wrapping_key", lambda token, wrap: pytest.fail("scrypt ran"))

    return stop


async def first_of(root: Path, storage: MemoryStorage) -> Server:
    await storage.open()
    return await Server(root / "first", storage).start()


async def replace_sa_key(server: Server) -> None:
    key = generate_key()
    (server.root / "pki/sa.key").write_bytes(private_key_pem(key))
    (server.root / "pki/sa.pub").write_bytes(public_key_pem(key))


# ── starting ──────────────────────────────────────────────────────────────────────────────────────────────────────


@scenario
async def test_the_first_server_makes_a_token_and_others_join_with_it(tmp_path: Path, storage: MemoryStorage) -> None:
    first = await first_of(tmp_path, storage)
    assert set(first.files()) == set(SHARED)
    token_file = first.root / "server/token"
    assert token_file.stat().st_mode & 0o777 == 0o600
    second = await Server(tmp_path / "second", storage, server_token_file=str(token_file)).start()
    third = await Server(tmp_path / "third", storage, server_token=first.token).start()
    assert first.files() == second.files() == third.files()
    assert second.token == third.token == first.token
    serving = {(one.root / "pki/apiserver.key").read_bytes() for one in (first, second, third)}
    assert len(serving) == 3
    assert not list(tmp_path.glob("*/server/staging"))


@scenario
async def test_nothing_secret_stands_in_the_store(tmp_path: Path, storage: MemoryStorage) -> None:
    first = await first_of(tmp_path, storage)
    entry = await storage.get(KEY)
    assert entry is not None
    for name in ("ca.key", "sa.key", "lineage.key"):
        for line in first.files()[name].splitlines()[1:-1]:
            assert line not in entry.value
    assert first.token.encode() not in entry.value


@scenario
async def test_servers_that_start_at_once_agree_on_one_ca(tmp_path: Path, storage: MemoryStorage) -> None:
    await storage.open()
    servers = [Server(tmp_path / name, storage, server_token=TOKEN) for name in ("a", "b", "c")]
    await asyncio.gather(*(one.start() for one in servers))
    assert len({one.pin for one in servers}) == 1
    assert servers[0].files() == servers[1].files() == servers[2].files()


@scenario
async def test_of_servers_that_make_a_token_each_one_starts(tmp_path: Path, storage: MemoryStorage) -> None:
    await storage.open()
    one, other = Server(tmp_path / "one", storage), Server(tmp_path / "other", storage)
    results = await asyncio.gather(one.start(), other.start(), return_exceptions=True)
    [refused] = [result for result in results if isinstance(result, BaseException)]
    assert "give --server-token-file" in str(refused)
    loser = one if isinstance(results[0], BaseException) else other
    assert not (loser.root / "server/token").exists()
    assert not (loser.root / "pki/ca.crt").exists()


@scenario
async def test_a_server_starts_again_without_scrypt(
    tmp_path: Path, storage: MemoryStorage, stopped_scrypt: Callable[[], None]
) -> None:
    first = await first_of(tmp_path, storage)
    before = await storage.revision()
    stopped_scrypt()
    await first.again().start()
    assert await storage.revision() == before


@scenario
async def test_keys_from_before_are_shared_as_they_are(tmp_path: Path, storage: MemoryStorage) -> None:
    await storage.open()
    first = Server(tmp_path / "first", storage)
    prepare(first.config, CLOCK.now(), os.urandom)
    before = first.files()
    await first.start()
    assert first.files() == before


@scenario
async def test_a_server_that_was_killed_before_it_wrote_its_files_takes_them(
    tmp_path: Path, storage: MemoryStorage
) -> None:
    first = await first_of(tmp_path, storage)
    before = first.files()
    shutil.rmtree(first.root / "pki")
    (first.root / "server/shared-keys.json").unlink()
    assert (await first.again().start()).files() == before


@scenario
async def test_a_lost_key_is_taken_from_the_store(tmp_path: Path, storage: MemoryStorage) -> None:
    first = await first_of(tmp_path, storage)
    before = first.files()
    (first.root / "pki/ca.key").unlink()
    assert (await first.again().start()).files() == before


@scenario
async def test_another_ca_is_refused_and_kept(tmp_path: Path, storage: MemoryStorage) -> None:
    first = await first_of(tmp_path, storage)
    foreign = Server(tmp_path / "foreign", storage, server_token=first.token)
    prepare(foreign.config, CLOCK.now(), os.urandom)
    before, revision = foreign.files(), await storage.revision()
    with pytest.raises(ConfigError) as raised:
        await foreign.start()
    assert first.pin in str(raised.value)
    assert foreign.pin in str(raised.value)
    assert (foreign.files(), await storage.revision()) == (before, revision)
    assert not (foreign.root / "server/token").exists()


@scenario
async def test_a_wrong_token_changes_nothing(tmp_path: Path, storage: MemoryStorage) -> None:
    first = await first_of(tmp_path, storage)
    second = Server(tmp_path / "second", storage, server_token=TOKEN)
    with pytest.raises(
        WrongTokenError,
        match="a store that was restored opens with the token of the time of the backup",
    ) as raised:
        await second.start()
    assert TOKEN not in str(raised.value)
    assert [path.name for path in second.root.rglob("*")] == [".lock"]
    with pytest.raises(WrongTokenError):
        await Server(first.root, storage, server_token=TOKEN).start()
    assert first.token != TOKEN


@scenario
async def test_without_a_token_the_error_says_what_to_give(tmp_path: Path, storage: MemoryStorage) -> None:
    await first_of(tmp_path, storage)
    with pytest.raises(ConfigError, match="give --server-token-file with the server token"):
        await Server(tmp_path / "second", storage).start()


BAD_TOKENS = {
    "a bootstrap token": ("abcdef.0123456789abcdef", "this is a bootstrap token"),
    "an empty file": ("", "one line of 16"),
}


@pytest.mark.parametrize(("content", "reason"), BAD_TOKENS.values(), ids=BAD_TOKENS)
@scenario
async def test_files_that_hold_no_token(tmp_path: Path, storage: MemoryStorage, content: str, reason: str) -> None:
    await storage.open()
    path = tmp_path / "token"
    path.write_text(content)
    with pytest.raises(ConfigError, match=f"server-token-file: {path}: .*{reason}"):
        await Server(tmp_path / "first", storage, server_token_file=str(path)).start()
    assert await storage.get(KEY) is None


@scenario
async def test_a_store_that_others_change_all_the_time_ends_the_start(
    tmp_path: Path, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await storage.open()
    server, tries = Server(tmp_path / "first", storage, server_token=TOKEN), 0

    async def lose(*ignored: object) -> bool:
        nonlocal tries
        tries += 1
        return False

    monkeypatch.setattr(SharedKeys, "_write_row", lose)
    with pytest.raises(StorageError, match="start again"):
        await server.start()
    assert tries == MAX_ATTEMPTS


SHARING: dict[str, tuple[dict[str, str], bool]] = {
    "a store of its own place is shared": ({"storage": "sqlite:/elsewhere/x.db"}, True),
    "a store in the data directory is not": ({}, False),
    "a store in the data directory is shared with a token": ({"server_token": TOKEN}, True),
    "a store in memory is not": ({"storage": "memory:", "server_token": TOKEN}, False),
    "keys that are files are not": ({"storage": "sqlite:/elsewhere/x.db", "shared_keys": "files"}, False),
}


@pytest.mark.parametrize(("settings", "expected"), SHARING.values(), ids=SHARING)
def test_which_servers_share(tmp_path: Path, settings: dict[str, str], expected: bool) -> None:
    assert shares_keys(server_config(data_dir=str(tmp_path), **settings)) is expected


# ── changes ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def two(tmp_path: Path, storage: MemoryStorage) -> tuple[Server, Server]:
    first = await first_of(tmp_path, storage)
    return first, await Server(tmp_path / "second", storage, server_token=first.token).start()


def add_file(name: str, content: Callable[[Path], bytes]) -> Callable[[Path], None]:
    def edit(copy: Path) -> None:
        (copy / "pki" / name).write_bytes(content(copy))

    return edit


@scenario
async def test_a_change_reaches_every_server_and_nobody_twice(tmp_path: Path, storage: MemoryStorage) -> None:
    first, second = await two(tmp_path, storage)
    assert not await second.keys.follow()
    assert await first.keys.change(add_file("retired-ca.crt", lambda copy: (copy / "pki/ca.crt").read_bytes()))
    assert await second.keys.follow()
    assert not await second.keys.follow()
    assert not await first.keys.follow()
    assert first.files() == second.files()
    assert "retired-ca.crt" in second.files()
    assert await first.keys.change(lambda copy: (copy / "pki/retired-ca.crt").unlink())
    assert await second.keys.follow()
    assert "retired-ca.crt" not in second.files()


@scenario
async def test_of_two_changes_at_once_one_is_made(tmp_path: Path, storage: MemoryStorage) -> None:
    first, second = await two(tmp_path, storage)

    def ca(copy: Path) -> bytes:
        return (copy / "pki/ca.crt").read_bytes()

    made = await asyncio.gather(
        first.keys.change(add_file("retired-ca.crt", ca)), second.keys.change(add_file("cross-signed.crt", ca))
    )
    assert sorted(made) == [False, True]
    assert not await (second if made[0] else first).keys.change(
        add_file("retired-ca.crt", ca)
    )  # it has to follow first
    await asyncio.gather(first.keys.follow(), second.keys.follow())
    assert first.files() == second.files()


@scenario
async def test_a_change_that_fails_changes_nothing(tmp_path: Path, storage: MemoryStorage) -> None:
    first, second = await two(tmp_path, storage)
    before = first.files()
    with pytest.raises(ConfigError, match=r"ca\.crt"):
        await first.keys.change(add_file("ca.crt", lambda copy: b"no certificate"))
    assert first.files() == before
    assert not await second.keys.follow()


@scenario
async def test_files_of_an_administrator_stay(tmp_path: Path, storage: MemoryStorage) -> None:
    first, second = await two(tmp_path, storage)
    (second.root / "pki/rollover").mkdir()
    (second.root / "pki/rollover/new.crt").write_bytes(b"of a rollover that is to come")
    await first.keys.change(add_file("retired-ca.crt", lambda copy: (copy / "pki/ca.crt").read_bytes()))
    assert await second.keys.follow()
    assert (second.root / "pki/rollover/new.crt").exists()


@scenario
async def test_a_key_that_was_replaced_by_hand_is_shared_at_the_next_start(
    tmp_path: Path, storage: MemoryStorage
) -> None:
    first, second = await two(tmp_path, storage)
    await replace_sa_key(first)
    await first.again().start()
    assert await second.keys.follow()
    assert first.files() == second.files()


@scenario
async def test_a_store_from_an_earlier_backup_gets_the_present_keys(tmp_path: Path, storage: MemoryStorage) -> None:
    first, second = await two(tmp_path, storage)
    earlier = await storage.get(KEY)
    await first.keys.change(add_file("retired-ca.crt", lambda copy: (copy / "pki/ca.crt").read_bytes()))
    present, entry = first.files(), await storage.get(KEY)
    assert earlier is not None
    assert entry is not None
    await storage.update(KEY, earlier.value, expected=entry.revision)
    assert not await first.keys.follow()
    await first.again().start()
    assert first.files() == present
    assert await second.keys.follow()
    assert second.files() == present


@scenario
async def test_a_server_without_its_token_says_so_when_keys_change(
    tmp_path: Path, storage: MemoryStorage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await two(tmp_path, storage)
    (second.root / "server/token").unlink()
    await first.keys.change(add_file("retired-ca.crt", lambda copy: (copy / "pki/ca.crt").read_bytes()))
    clock, looks, follow = ManualClock(), asyncio.Semaphore(0), SharedKeys.follow

    async def counted(keys: SharedKeys) -> bool:
        try:
            return await follow(keys)
        finally:
            looks.release()

    monkeypatch.setattr(SharedKeys, "follow", counted)
    with caplog.at_level(logging.ERROR):
        running = asyncio.create_task(second.again().keys.run(clock))
        for _ in range(3):
            await settle()
            await clock.advance(FOLLOW_SECONDS)
            await looks.acquire()  # it reads files in a thread, which takes real time
        await settle()
        running.cancel()
    assert len([one for one in caplog.messages if "cannot be read" in one or "are not followed" in one]) == 1
    with pytest.raises(ConfigError, match="give --server-token-file"):
        await second.again().keys.follow()


# ── tokens ────────────────────────────────────────────────────────────────────────────────────────────────────────


HOUR = timedelta(hours=1)
NEW = Secret("fedcba9876543210fedcba9876543210")


def judged(server: Server, token: str, at: datetime) -> str:
    """Return what the authenticator of join tokens would say, from the files of the data directory."""
    former = server.root / "server/former-tokens.json"
    accepted = AcceptedTokens(
        digest(Secret(server.token)), None, decode_former(former.read_bytes()) if former.exists() else ()
    )
    return accepted.judge("server", Secret(token), at)


@scenario
async def test_the_former_token_works_until_the_end_of_its_grace(tmp_path: Path, storage: MemoryStorage) -> None:
    first, second = await two(tmp_path, storage)
    before, old = first.files(), first.token
    rotated = await first.keys.rotate(NEW, HOUR)
    end = CLOCK.now() + HOUR
    assert (rotated.grace_ends, rotated.made) == (end, None)
    assert first.token == NEW.reveal().decode()
    assert not await second.keys.follow()  # no key changed
    assert second.token == first.token
    for server in (first, second):
        assert server.files() == before
        assert judged(server, server.token, CLOCK.now()) == "accepted"
        assert judged(server, old, end - timedelta(seconds=1)) == "accepted"
        assert judged(server, old, end) == "rotated-token"
    late = await Server(tmp_path / "late", storage, server_token=old).start()
    assert late.token == first.token
    assert not await second.keys.remove_expired()

    later = ManualClock(end)
    third = Server(first.root, storage, clock=later)
    assert await third.keys.remove_expired()
    assert not await third.keys.remove_expired()
    with pytest.raises(WrongTokenError):
        await Server(tmp_path / "too-late", storage, server_token=old).start()
    await Server(tmp_path / "new", storage, server_token=first.token).start()
    assert not await second.keys.follow()
    await second.again().start()


@scenario
async def test_of_servers_that_remove_a_token_at_once_one_does(tmp_path: Path, storage: MemoryStorage) -> None:
    first, second = await two(tmp_path, storage)
    await first.keys.rotate(NEW, HOUR)
    await second.keys.follow()
    clock = ManualClock(CLOCK.now() + HOUR)
    both = [Server(one.root, storage, clock=clock).keys for one in (first, second)]
    results = await asyncio.gather(*(one.remove_expired() for one in both), return_exceptions=True)
    assert sum(one is True for one in results) == 1
    for one in both:
        assert not await one.remove_expired()
    entry = await storage.get(KEY)
    assert entry is not None
    assert len(envelope.decode(entry.value).wraps) == 1


@scenario
async def test_a_given_token_is_refused_after_its_end_while_its_wrap_is_there(
    tmp_path: Path, storage: MemoryStorage
) -> None:
    first = await first_of(tmp_path, storage)
    old = first.token
    await first.keys.rotate(NEW, HOUR)
    clock = ManualClock(CLOCK.now() + HOUR)
    with pytest.raises(WrongTokenError, match="its grace ended at 2026-01-02T04:04:05Z"):
        await Server(tmp_path / "late", storage, clock=clock, server_token=old).start()
    assert not (tmp_path / "late/server/token").exists()


@scenario
async def test_without_a_grace_the_former_token_ends_on_every_server(tmp_path: Path, storage: MemoryStorage) -> None:
    first, second = await two(tmp_path, storage)
    old = first.token
    rotated = await first.keys.rotate(NEW, timedelta())
    assert rotated.grace_ends is None
    assert judged(first, old, CLOCK.now()) == "rotated-token"
    assert judged(second, old, CLOCK.now()) == "accepted"
    with pytest.raises(WrongTokenError, match="give --server-token-file"):
        await second.keys.follow()
    assert judged(second, old, CLOCK.now()) == "rotated-token"
    with pytest.raises(WrongTokenError):  # it says so again at the next look
        await second.keys.follow()
    with pytest.raises(WrongTokenError):
        await second.again().start()
    (second.root / "server/token").write_bytes(NEW.reveal())  # by its operator, while it runs
    assert not await second.keys.follow()
    assert judged(second, first.token, CLOCK.now()) == "accepted"
    assert judged(second, old, CLOCK.now()) == "rotated-token"


@scenario
async def test_the_hash_of_the_ca_stays_in_front_of_the_token(tmp_path: Path, storage: MemoryStorage) -> None:
    first = await first_of(tmp_path, storage)
    (first.root / "server/token").write_text(f"K10{'0' * 64}::server:{first.token}\n")
    await first.keys.rotate(NEW, HOUR)
    assert first.token == f"K10{'0' * 64}::server:{NEW.reveal().decode()}"
    await first.again().start()


@scenario
async def test_a_token_that_is_made_here_is_told_once(tmp_path: Path, storage: MemoryStorage) -> None:
    first = await first_of(tmp_path, storage)
    rotated = await first.keys.rotate(None, HOUR)
    assert rotated.made is not None
    assert rotated.made.reveal().decode() == first.token


@scenario
async def test_a_claimed_store_is_sealed_by_a_rotation(tmp_path: Path, storage: MemoryStorage, kept: Server) -> None:
    await storage.open()
    await kept.keys.claim()
    before = kept.files()
    (kept.root / "server/token").write_text(TOKEN)
    await kept.keys.rotate(NEW, HOUR)
    assert kept.files() == before
    for name, token in (("by-old", TOKEN), ("by-new", NEW.reveal().decode())):
        assert (await Server(tmp_path / name, storage, server_token=token).start()).files() == before
    await kept.again().keys.claim()


@scenario
async def test_a_claimed_store_without_a_token_gets_its_first(storage: MemoryStorage, kept: Server) -> None:
    await storage.open()
    await kept.keys.claim()
    rotated = await kept.keys.rotate(None, HOUR)
    assert rotated.grace_ends is None
    assert not (kept.root / "server/former-tokens.json").exists()
    await kept.again().start()


@scenario
async def test_servers_with_copied_keys_are_told_what_to_replace(storage: MemoryStorage, tmp_path: Path) -> None:
    server = Server(tmp_path, storage, shared_keys="files")
    with pytest.raises(ConfigError, match=r"replace .*/server/token on each"):
        await server.keys.rotate(None, HOUR)


async def write_first_version(server: Server) -> None:
    """Replace the row by one that the first version of the program wrote."""
    entry = await server.storage.get(KEY)
    assert entry is not None
    row, data_key, nonce = envelope.decode(entry.value), Secret(os.urandom(32)), os.urandom(12)
    wrap = envelope._wrap(row.cluster, data_key, envelope.TokenTerm(Secret(server.token)), os.urandom)
    old = replace(row, version=1, wraps=(wrap,), nonce=nonce)
    files = msgspec.json.encode(server.files())
    old = replace(old, data=AESGCM(data_key.reveal()).encrypt(nonce, files, envelope._header(old)))
    await server.storage.update(KEY, envelope.encode(old), expected=entry.revision)


@scenario
async def test_a_row_of_the_first_version_is_rotated(tmp_path: Path, storage: MemoryStorage) -> None:
    first = await first_of(tmp_path, storage)
    old, before = first.token, first.files()
    await write_first_version(first)
    second = await Server(tmp_path / "second", storage, server_token=old).start()
    assert second.token == old
    await first.again().keys.rotate(NEW, HOUR)
    assert not await second.keys.follow()
    assert second.files() == before
    assert second.token == first.token == NEW.reveal().decode()
    assert (await Server(tmp_path / "third", storage, server_token=old).start()).files() == before


@scenario
async def test_a_rotation_that_loses_the_race_changes_nothing(
    tmp_path: Path, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await first_of(tmp_path, storage)
    old = first.token

    async def lose(*ignored: object) -> bool:
        return False

    monkeypatch.setattr(SharedKeys, "_write_row", lose)
    with pytest.raises(StorageError, match="try again"):
        await first.keys.rotate(NEW, HOUR)
    assert first.token == old
    assert not (first.root / "server/former-tokens.json").exists()


@scenario
async def test_tokens_of_a_store_without_keys(tmp_path: Path, storage: MemoryStorage) -> None:
    await storage.open()
    assert await Server(tmp_path / "first", storage).keys.row() is None
    assert not await Server(tmp_path / "first", storage).keys.remove_expired()
    with pytest.raises(ConfigError, match="start its server first"):
        await Server(tmp_path / "first", storage).keys.rotate(None, HOUR)


@scenario
async def test_tokens_are_changed_by_a_server_that_has_one(tmp_path: Path, storage: MemoryStorage) -> None:
    first = await first_of(tmp_path, storage)
    (first.root / "server/token").unlink()
    with pytest.raises(ConfigError, match="give --server-token-file"):
        await first.keys.rotate(None, HOUR)
    with pytest.raises(ConfigError, match="give --server-token-file"):
        await first.keys.change(lambda copy: None)


@scenario
async def test_a_damaged_list_of_former_tokens_is_written_anew(tmp_path: Path, storage: MemoryStorage) -> None:
    first = await first_of(tmp_path, storage)
    old = first.token
    (first.root / "server/former-tokens.json").write_bytes(b"half of")
    await first.keys.rotate(NEW, HOUR)
    assert judged(first, old, CLOCK.now()) == "accepted"


class KilledError(BaseException):
    """Plays `kill -9`."""


@pytest.mark.parametrize("grace", [timedelta(), HOUR], ids=["without a grace", "with a grace"])
@scenario
async def test_a_rotation_that_is_killed_at_any_step_leaves_one_token_that_opens(
    tmp_path: Path, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch, grace: timedelta
) -> None:
    steps = 0
    for number in range(1, 20):
        store = MemoryStorage()
        first = await first_of(tmp_path / str(number), store)
        before, old, count = first.files(), first.token, 0

        def killed(write: Callable[..., None], number: int = number) -> Callable[..., None]:
            def written(*arguments: Any) -> None:
                nonlocal count
                count += 1
                if count == number:
                    raise KilledError
                write(*arguments)

            return written

        update = store.update

        async def updated(key: str, value: bytes, expected: int, number: int = number, update: Any = update) -> Any:
            nonlocal count
            count += 1
            if count == number:
                raise KilledError
            return await update(key, value, expected=expected)

        with monkeypatch.context() as patched:
            for module in (files, tokenfile):
                patched.setattr(module, "write_atomic", killed(module.write_atomic))
            patched.setattr(store, "update", updated)
            try:
                await first.keys.rotate(NEW, grace)
                break
            except KilledError:
                steps += 1
        opened = []
        for token in (old, NEW.reveal().decode()):
            try:
                await Server(tmp_path / f"{number}-{token[:2]}", store, server_token=token).start()
                opened.append(token)
            except WrongTokenError:
                pass
        assert opened, number
        again = await first.again().start()  # with what is in its data directory
        assert again.files() == before
        assert again.token == opened[-1]
        assert judged(again, again.token, CLOCK.now()) == "accepted"
        assert (judged(again, old, CLOCK.now()) == "accepted") == (old in opened)
        assert not (again.root / "server/next-token").exists()
    assert steps >= 4


# ── servers that keep their keys ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def kept(tmp_path: Path, storage: MemoryStorage) -> Server:
    """A server whose store is in its data directory."""
    server = Server(tmp_path / "first", storage)
    prepare(server.config, CLOCK.now(), os.urandom)
    return server


@scenario
async def test_a_store_is_claimed_once(
    storage: MemoryStorage, kept: Server, stopped_scrypt: Callable[[], None]
) -> None:
    await storage.open()
    stopped_scrypt()
    await kept.keys.claim()
    revision = await storage.revision()
    await kept.again().keys.claim()
    assert await storage.revision() == revision
    assert not await kept.keys.follow()
    assert not await kept.keys.change(lambda copy: None)


@scenario
async def test_a_claim_follows_its_ca(storage: MemoryStorage, kept: Server) -> None:
    await storage.open()
    await kept.keys.claim()
    before, old = kept.files(), kept.pin
    for name in ("ca.crt", "ca.key"):
        (kept.root / "pki" / name).unlink()
    make_shared_keys(kept.config, kept.root, CLOCK.now(), os.urandom)
    new = kept.files()["ca.crt"]
    with pytest.raises(
        ConfigError, match=f"the CA in .* is {kept.pin}, and the CA of the cluster in this store is {old}"
    ):
        await kept.again().keys.claim()  # server/shared-keys.json is of the cluster, and the files are not
    (kept.root / "pki/ca.crt").write_bytes(new + before["ca.crt"])  # as in a rollover
    await kept.again().keys.claim()
    (kept.root / "pki/ca.crt").write_bytes(new)  # as after a rollover that keeps no retired CA
    await kept.again().keys.claim()
    entry = await storage.get(KEY)
    assert entry is not None
    assert envelope.decode(entry.value).authorities == (kept.pin,)


@pytest.mark.parametrize("named", [True, False])
@scenario
async def test_a_claim_that_a_rollover_of_an_earlier_version_left_behind_follows_the_ca_that_objects_name(
    storage: MemoryStorage, kept: Server, named: bool
) -> None:
    await storage.open()
    await kept.keys.claim()
    old = kept.pin
    for name in ("ca.crt", "ca.key"):
        (kept.root / "pki" / name).unlink()
    make_shared_keys(kept.config, kept.root, CLOCK.now(), os.urandom)

    async def stored() -> StoredCluster:
        return StoredCluster((kept.pin if named else old,))

    keys = SharedKeys(kept.config, storage, os.urandom, CLOCK, stored)
    if not named:
        with pytest.raises(ConfigError, match=f"the CA of the cluster in this store is {old}"):
            await keys.keep(kept.make_missing)
        return
    await keys.keep(kept.make_missing)
    entry = await storage.get(KEY)
    assert entry is not None
    assert envelope.decode(entry.value).authorities == (kept.pin,)


@scenario
async def test_another_ca_is_refused_on_a_claimed_store(tmp_path: Path, storage: MemoryStorage, kept: Server) -> None:
    await storage.open()
    await kept.keys.claim()
    foreign = Server(tmp_path / "foreign", storage)
    with pytest.raises(ConfigError, match="start that one with --server-token-file"):
        await foreign.start()
    prepare(foreign.config, CLOCK.now(), os.urandom)
    with pytest.raises(ConfigError, match=kept.pin):
        await foreign.keys.claim()


@scenario
async def test_a_claimed_store_is_sealed_when_its_server_gets_a_token(
    tmp_path: Path, storage: MemoryStorage, kept: Server
) -> None:
    await storage.open()
    await kept.keys.claim()
    await Server(kept.root, storage, server_token=TOKEN).start()
    second = await Server(tmp_path / "second", storage, server_token=TOKEN).start()
    assert second.files() == kept.files()
    await kept.keys.claim()


@scenario
async def test_a_sealed_store_is_not_claimed_with_keys_that_are_behind(storage: MemoryStorage, kept: Server) -> None:
    await storage.open()
    await kept.start()
    await replace_sa_key(kept)
    with pytest.raises(ConfigError, match="give --server-token-file"):
        await kept.keys.claim()


@scenario
async def test_servers_that_claim_at_once_agree(tmp_path: Path, storage: MemoryStorage, kept: Server) -> None:
    await storage.open()
    copy = tmp_path / "copy"
    shutil.copytree(kept.root, copy)
    await asyncio.gather(kept.keys.claim(), Server(copy, storage).keys.claim())
    assert await storage.revision() == 2


@scenario
async def test_a_rotation_is_confirmed_while_no_other_can_begin(tmp_path: Path, storage: MemoryStorage) -> None:
    first, _ = await two(tmp_path, storage)
    before = first.token
    order: list[str] = []

    async def ended() -> None:
        order.append("asked")
        raise ConfigError("the token was replaced")

    async def first_rotation() -> None:
        await first.keys.rotate(NEW, HOUR, confirm)
        order.append("rotated")

    async def confirm() -> None:
        task.append(asyncio.ensure_future(first.keys.rotate(None, HOUR, ended)))
        await asyncio.sleep(0)
        assert order == []

    task: list[asyncio.Task[Any]] = []
    await first_rotation()
    with pytest.raises(ConfigError, match="the token was replaced"):
        await task[0]
    assert order == ["rotated", "asked"]
    assert first.token == NEW.reveal().decode() != before
