"""The etcd driver while members are killed, stopped and restored, run out of space, and demand credentials."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from mooring.api.kinds import KINDS
from mooring.clock import SystemClock
from mooring.errors import StorageError, UnknownOutcomeError
from mooring.registry.cache.views import MAX_AGE_SECONDS
from mooring.registry.store import Registry
from mooring.settings.storage import StorageSettings
from mooring.storage.contract import CompactedError
from mooring.storage.etcd import connection
from mooring.storage.etcd import driver as drivermodule
from mooring.storage.etcd.driver import EtcdStorage
from mooring.storage.etcd.watching import CREATE_SECONDS
from tests.support import etcd
from tests.support.registryroom import Deciding
from tests.support.storagedrivers import closing, open_etcd, take

pytestmark = pytest.mark.skipif(bool(etcd.MISSING), reason=etcd.MISSING)
REVOKED = "key-" + "0" * 64
ENTRY = json.dumps(
    {
        "apiVersion": "mooring.dev/v1alpha1",
        "kind": "CertificateRevocation",
        "metadata": {"name": REVOKED, "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"publicKey": "sha256:" + "0" * 64},
    }
).encode()
PATIENCE = 120.0
"""Seconds that end a hang: an election takes one or two, and on a busy machine several of them may fail."""


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    """Wait until `look` returns True. Errors of the store count as False."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                if await look():
                    return
            except StorageError:
                pass
            await asyncio.sleep(0.05)


class Writers:
    """Creations without end, and what was acknowledged."""

    def __init__(self, store: EtcdStorage) -> None:
        self.store = store
        self.acknowledged: dict[str, int] = {}
        self.refused: set[str] = set()
        self.unknown = 0
        self._tasks = [asyncio.create_task(self._write(n)) for n in range(4)]

    async def _write(self, writer: int) -> None:
        number = 0
        while True:
            number += 1
            key = f"/registry/w{writer}/{number}"
            try:
                self.acknowledged[key] = (await self.store.create(key, key.encode())).revision
            except UnknownOutcomeError:
                self.unknown += 1
            except StorageError:
                self.refused.add(key)
                await asyncio.sleep(0.05)

    async def more(self, count: int = 20) -> None:
        """Wait until `count` more writes were acknowledged."""
        before = len(self.acknowledged)
        async with asyncio.timeout(PATIENCE):
            while len(self.acknowledged) < before + count:
                await asyncio.sleep(0.01)

    async def check(self) -> None:
        """End, and assert that all that was acknowledged is there, and nothing that was refused."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        page = await self.store.range("/registry/")
        stored = {entry.key: entry.revision for entry in page.entries}
        assert self.acknowledged.items() <= stored.items()
        assert not self.refused & stored.keys()


async def follow(store: EtcdStorage, seen: list[int]) -> None:
    """Watch as the cache does: resume after each error, and never skip."""
    after = 1
    while True:
        try:
            async for batch in store.watch("/registry/", after=after):
                seen += [change.revision for change in batch if not change.is_progress]
                after = batch[-1].revision
        except CompactedError:
            raise
        except StorageError:
            await asyncio.sleep(0.1)


def test_views_behind_a_member_that_hangs_do_not_judge_or_have_the_revocation(tmp_path: Path) -> None:
    async def scenario(cluster: etcd.Etcd) -> None:
        clock = SystemClock()
        store = open_etcd(cluster, "/registry")
        await store.open()
        registry = Registry(store, KINDS, clock, os.urandom, (), (Deciding(),))
        await registry.start()
        revocations = registry.views["certificaterevocations"]
        (used,) = (member for member in cluster.members if member.url == store._connection.endpoint.url)
        others = [member.url for member in cluster.members if member is not used]
        other = EtcdStorage(others, StorageSettings(etcd_prefix="/registry"), clock)
        await other.open()
        assert await registry.reader.fresh()
        used.stop()
        acknowledged = False

        async def revoked() -> bool:
            nonlocal acknowledged
            if not acknowledged:
                await other.create(f"/registry/mooring.dev/certificaterevocations/{REVOKED}", ENTRY)
                acknowledged = True
            return True

        await until(revoked)
        stored = clock.monotonic()

        async def is_seen() -> bool:
            await registry.reader.fresh()
            return bool(list(revocations.list()))

        async with asyncio.TaskGroup() as group:
            asking = group.create_task(until(is_seen))
            while not asking.done():
                is_old = clock.monotonic() - stored > MAX_AGE_SECONDS
                assert not is_old or registry.cache.is_late or list(revocations.list())
                await asyncio.sleep(0.01)
        assert len(list(revocations.list())) == 1
        used.resume()
        await registry.stop()
        await other.close()
        await store.close()

    with etcd.running(tmp_path, 3) as cluster:
        asyncio.run(scenario(cluster))


def test_members_are_killed_and_stopped_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    async def scenario(cluster: etcd.Etcd) -> None:
        store = open_etcd(cluster, "/registry")
        await store.open()
        writers, seen = Writers(store), list[int]()
        following = asyncio.create_task(follow(store, seen))
        await writers.more()
        used = next(one for one in cluster.members if one.url == store._connection.endpoint.url)
        used.kill()  # the member in use
        await writers.more()
        used.start()
        await asyncio.to_thread(used.await_healthy)
        leader = await asyncio.to_thread(lambda: cluster.leader)
        leader.kill()
        await writers.more()
        leader.start()
        await asyncio.to_thread(leader.await_healthy)
        used = next(one for one in cluster.members if one.url == store._connection.endpoint.url)
        used.stop()  # it hangs, and keeps its connections
        await writers.more()
        used.resume()
        await writers.more()
        await writers.check()
        newest = await store.revision()
        stored = sorted(entry.revision for entry in (await store.range("/registry/")).entries)

        async def followed() -> bool:
            return bool(seen) and seen[-1] >= stored[-1]

        await until(followed)
        following.cancel()
        assert seen == stored, "every change once, in order"
        assert newest >= stored[-1]
        await store.close()

    with etcd.running(tmp_path, 3) as cluster:
        asyncio.run(scenario(cluster))


def test_without_a_quorum_reads_and_writes_are_refused_clearly_and_go_on_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivermodule, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(connection, "READ_SECONDS", 1.0)
    monkeypatch.setattr(connection, "WRITE_SECONDS", 1.0)

    async def scenario(cluster: etcd.Etcd) -> None:
        store = open_etcd(cluster, "/registry")
        await store.open()
        entry = await store.create("/registry/a", b"1")
        for member in cluster.members[:2]:
            member.kill()
        with pytest.raises(StorageError, match=r"no leader|cannot be reached|does not answer") as caught:
            await store.revision()
        assert not isinstance(caught.value, UnknownOutcomeError)
        with pytest.raises(StorageError):
            await store.update("/registry/a", b"2", expected=entry.revision)

        async def noticed() -> bool:
            return bool(store.problem)

        await until(noticed)
        for member in cluster.members[:2]:
            member.start()

        async def serves() -> bool:
            await store.revision()
            return not store.problem

        await until(serves)
        current = await store.get("/registry/a")
        assert current is not None
        await store.update("/registry/a", b"3", expected=current.revision)
        await store.close()

    with etcd.running(tmp_path, 3) as cluster:
        asyncio.run(scenario(cluster))


def test_a_full_database_is_told_in_words_and_the_store_goes_on_once_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivermodule, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(drivermodule, "ALARM_BEATS", 2)

    async def scenario(cluster: etcd.Etcd) -> None:
        store = open_etcd(cluster, "/registry")
        await store.open()
        value = os.urandom(1_000_000)
        entry = await store.create("/registry/a", value)
        refused = ""
        while not refused:
            try:
                entry = await store.update("/registry/a", value, expected=entry.revision)
            except StorageError as error:
                refused = str(error)
        assert "NOSPACE" in refused
        assert "etcdctl defrag" in refused
        assert "alarm disarm" in refused

        async def warned() -> bool:
            return "NOSPACE" in store.alarm

        await until(warned)
        assert not store.problem
        assert await store.get("/registry/a") == entry
        await store.compact(await store.revision())
        await asyncio.to_thread(cluster.control, "defrag")
        await asyncio.to_thread(cluster.control, "alarm", "disarm")

        async def calm() -> bool:
            return not store.alarm

        await until(calm)
        await store.update("/registry/a", b"", expected=entry.revision)
        await store.close()

    with etcd.running(tmp_path, arguments=("--quota-backend-bytes", "6000000")) as cluster:
        asyncio.run(scenario(cluster))


def test_a_restore_from_a_snapshot_is_noticed_and_never_served_silently(tmp_path: Path) -> None:
    async def scenario(cluster: etcd.Etcd) -> None:
        store = open_etcd(cluster, "/registry")
        await store.open()
        kept = await store.create("/registry/kept", b"1")
        snapshot = tmp_path / "snapshot.db"
        await asyncio.to_thread(cluster.control, "snapshot", "save", str(snapshot))
        lost = [await store.create(f"/registry/lost/{n}", b"1") for n in range(5)]
        watch = store.watch("/registry/", after=lost[-1].revision)
        waiting = asyncio.ensure_future(take(watch, 1))
        await asyncio.sleep(0.05)
        (member,) = cluster.members
        member.kill()
        shutil.rmtree(member.data)
        await asyncio.to_thread(cluster.restore, member, snapshot)
        member.start()
        await asyncio.to_thread(member.await_healthy)
        with pytest.raises(StorageError):
            await waiting
        assert await store.revision() > lost[-1].revision
        page = await store.range("/registry/")
        assert [entry.key for entry in page.entries] == ["/registry/kept"]
        assert page.entries[0].revision > lost[-1].revision > kept.revision
        with pytest.raises(CompactedError):
            await anext(store.watch("/registry/", after=lost[-1].revision))
        async with closing(store.watch("/registry/", after=page.revision)) as fresh:
            created = await store.create("/registry/new", b"")
            assert [change.entry for change in await take(fresh, 1)] == [created]
        await store.close()

    with etcd.running(tmp_path) as cluster:
        asyncio.run(scenario(cluster))


@pytest.mark.client
def test_tls_with_client_certificates_and_files_that_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(drivermodule, "FILES_SECONDS", 0.05)
    made = tmp_path / "certificates"
    made.mkdir()
    certificates = etcd.Certificates.make(made)
    certificate, key = certificates.client

    async def scenario(cluster: etcd.Etcd) -> None:
        files = {"etcd_cafile": str(certificates.ca), "etcd_certfile": str(certificate), "etcd_keyfile": str(key)}
        store = open_etcd(cluster, "/registry", **files)
        await store.open()
        await store.create("/registry/a", b"")
        with caplog.at_level(logging.INFO):
            certificate.write_bytes(certificate.read_bytes() + b"\n")
            async with asyncio.timeout(PATIENCE):
                while "connecting again" not in caplog.text:
                    await asyncio.sleep(0.01)
        await store.create("/registry/b", b"")
        await store.close()
        for settings, message in (
            ({}, "does not verify: check --etcd-cafile"),
            ({"etcd_cafile": str(certificates.ca)}, "client certificate"),
            ({**files, "etcd_cafile": str(tmp_path / "none")}, "etcd-cafile: .* cannot be read"),
        ):
            with pytest.raises(StorageError, match=message):
                await open_etcd(cluster, "/registry", **settings).open()
        plain = EtcdStorage([cluster.endpoints.replace("https", "http")], StorageSettings(), SystemClock())
        with pytest.raises(StorageError, match="etcd cannot be used: http://"):
            await plain.open()

    with etcd.running(tmp_path, certificates=certificates, client_certificates=True) as cluster:
        asyncio.run(scenario(cluster))


@pytest.mark.client
def test_credentials_are_read_again_after_a_refusal_and_while_nothing_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(drivermodule, "FILES_SECONDS", 3600.0)
    monkeypatch.setattr(connection, "READ_SECONDS", 60.0)
    present, others = tmp_path / "present", tmp_path / "others"
    for directory in (present, others):
        directory.mkdir()
    certificates = etcd.Certificates.make(present)
    etcd.Certificates.make(others)
    certificate, key = certificates.client

    async def scenario(cluster: etcd.Etcd) -> None:
        files = {"etcd_cafile": str(certificates.ca), "etcd_certfile": str(certificate), "etcd_keyfile": str(key)}
        store = open_etcd(cluster, "/registry", **files)
        await store.open()
        entry = await store.create("/registry/a", b"1")
        (member,) = cluster.members
        shown = {name: (present / name).read_bytes() for name in ("ca.crt", "root.crt", "root.key")}
        for name in ("ca.crt", "server.crt", "server.key"):
            (present / name).write_bytes((others / name).read_bytes())
        member.kill()
        member.start()
        await asyncio.to_thread(member.await_healthy)
        etcds = {"etcd_cafile": "ca.crt", "etcd_certfile": "root.crt", "etcd_keyfile": "root.key"}
        probe = open_etcd(cluster, "/registry", **{key: str(others / name) for key, name in etcds.items()})
        await probe.open()  # etcd has read its own file once it takes a client of the other CA
        await probe.close()
        (present / "ca.crt").write_bytes(shown["ca.crt"])
        with monkeypatch.context() as impatient:
            impatient.setattr(connection, "READ_SECONDS", 0.5)
            with pytest.raises(StorageError):
                await store.get("/registry/a")
        for name in shown:
            (present / name).write_bytes((others / name).read_bytes())
        assert await store.get("/registry/a") == entry
        await store.close()

        monkeypatch.setattr(drivermodule, "FILES_SECONDS", 0.05)
        store = open_etcd(cluster, "/registry", **files)
        await store.open()
        member.stop()  # no read succeeds, nor fails within seconds
        caplog.clear()
        with caplog.at_level(logging.INFO):
            certificate.write_bytes(certificate.read_bytes() + b"\n")
            async with asyncio.timeout(1.5):  # sooner than a member that hangs is left
                while "connecting again" not in caplog.text:
                    await asyncio.sleep(0.01)
        member.resume()
        await store.close()

    with etcd.running(tmp_path, certificates=certificates, client_certificates=True) as cluster:
        asyncio.run(scenario(cluster))


def test_a_password_that_changes_at_etcd_first_is_read_with_the_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivermodule, "FILES_SECONDS", 3600.0)
    password = tmp_path / "password"
    password.write_text("first-password\n")

    async def scenario(cluster: etcd.Etcd) -> None:
        for command in (
            ("user", "add", "root:first-password"),
            ("user", "grant-role", "root", "root"),
            ("auth", "enable"),
        ):
            await asyncio.to_thread(cluster.control, *command)
        store = open_etcd(cluster, "/registry", etcd_username="root", etcd_password_file=str(password))
        await store.open()
        await store.create("/registry/a", b"1")
        await asyncio.to_thread(
            cluster.control,
            *("user", "passwd", "root", "--interactive=false"),
            user="root:first-password",
            given="second-password\n",
        )
        with pytest.raises(StorageError, match="refused the user or the password"):
            await store.create("/registry/b", b"1")
        password.write_text("second-password\n")
        created = await store.create("/registry/b", b"1")
        assert await store.get("/registry/b") == created
        await store.close()

    with etcd.running(tmp_path) as cluster:
        asyncio.run(scenario(cluster))


def test_a_password_and_its_token_are_renewed_and_wrong_ones_are_told(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("pass-word-of-root\n")

    async def scenario(cluster: etcd.Etcd) -> None:
        for command in (
            ("user", "add", "root:pass-word-of-root"),
            ("user", "grant-role", "root", "root"),
            ("auth", "enable"),
        ):
            await asyncio.to_thread(cluster.control, *command)
        credentials = {"etcd_username": "root", "etcd_password_file": str(password)}
        store = open_etcd(cluster, "/registry", **credentials)
        await store.open()
        entry = await store.create("/registry/a", b"1")
        await asyncio.sleep(2.5)  # tokens live for 1 s here
        assert await store.get("/registry/a") == entry
        async with closing(store.watch("/registry/", after=entry.revision)) as watch:
            await store.create("/registry/b", b"1")
            assert len(await take(watch, 1)) == 1
        await store.close()
        with pytest.raises(StorageError, match="demands a user"):
            await open_etcd(cluster, "/registry").open()
        password.write_text("wrong-pass-word")
        with pytest.raises(StorageError, match="refused the user or the password") as caught:
            await open_etcd(cluster, "/registry", **credentials).open()
        assert "pass-word" not in str(caught.value)

    with etcd.running(tmp_path, arguments=("--auth-token-ttl", "1")) as cluster:
        asyncio.run(scenario(cluster))


def test_a_user_that_may_not_watch_is_refused_at_the_start_with_what_to_grant(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("a-password")

    async def scenario(cluster: etcd.Etcd) -> None:
        for command in (
            ("user", "add", "root:a-password"),
            ("user", "grant-role", "root", "root"),
            ("role", "add", "writer"),
            ("role", "grant-permission", "writer", "--prefix=true", "write", "/registry/"),
            ("role", "grant-permission", "writer", "--prefix=true", "readwrite", "/mooring/"),
            ("user", "add", "writer:a-password"),
            ("user", "grant-role", "writer", "writer"),
            ("auth", "enable"),
        ):
            await asyncio.to_thread(cluster.control, *command)
        credentials = {"etcd_username": "writer", "etcd_password_file": str(password)}
        async with asyncio.timeout(CREATE_SECONDS):  # it is not waited for the confirmation of the watch
            with pytest.raises(StorageError, match=r"etcd denied the permission.*grant the user read"):
                await open_etcd(cluster, "/registry", **credentials).open()

    with etcd.running(tmp_path) as cluster:
        asyncio.run(scenario(cluster))


def test_an_etcd_that_is_not_there_is_one_clear_line() -> None:
    async def scenario() -> None:
        store = EtcdStorage(["http://127.0.0.1:1", "http://127.0.0.1:2"], StorageSettings(), SystemClock())
        with pytest.raises(StorageError) as caught:
            await store.open()
        assert str(caught.value) == (
            "etcd cannot be used: http://127.0.0.1:1: the connection is refused; "
            "http://127.0.0.1:2: the connection is refused"
        )

    asyncio.run(scenario())


FORKING = """
import asyncio, os, sys
from mooring.clock import SystemClock
from mooring.settings.storage import StorageSettings
from mooring.storage.drivers import open_storage

store = open_storage("etcd:" + sys.argv[1], SystemClock(), settings=StorageSettings(etcd_prefix=sys.argv[2]))

async def work():
    await store.open()
    await store.create(f"/registry/{os.getpid()}", b"")
    await store.close()

children = [os.fork() for _ in range(2)]
if 0 in children:
    asyncio.run(asyncio.wait_for(work(), 20))
    os._exit(0)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


def test_workers_that_are_forked_after_the_driver_was_loaded_and_before_it_was_opened_each_work() -> None:
    outcome = subprocess.run(
        [sys.executable, "-c", FORKING, etcd.shared().endpoints, etcd.prefix()], capture_output=True, timeout=60
    )
    assert outcome.returncode == 0, outcome.stderr
