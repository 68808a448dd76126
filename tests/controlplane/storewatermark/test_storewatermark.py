"""The file `store.mark`: what a server remembers, and a store that is older than that."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring import tombstones
from mooring.apimachinery.options import DeleteOptions, WriteOptions
from mooring.clock import SystemClock, rfc3339
from mooring.controlplane.configuration import server_config
from mooring.controlplane.parts.foundation import RegistryParts, open_registry
from mooring.controlplane.storewatermark.olderstore import JUMP, TRIES, RememberedTombstones, continue_beyond
from mooring.controlplane.storewatermark.storewatermark import StoreWatermark
from mooring.controlplane.storewatermark.watermarkfile import FILE_NAME, LOCK_NAME, WatermarkFile, read_watermark
from mooring.errors import ConfigError, StorageError
from mooring.identity import API_SERVER_USER, MASTERS, UserInfo
from mooring.pki.keys import private_key_pem
from mooring.reconcile.registryapi import RegistryApi
from mooring.secret import Secret
from mooring.storage.contract import CompactedError, Storage
from mooring.storage.drivers import open_storage
from mooring.storage.memory import MemoryStorage
from mooring.storage.restores import Restore, read_restores, record_restore
from mooring.trust.bootstraptoken.token import parse_token
from mooring.trust.bootstraptoken.tokensecret import TokenRecord, to_secret
from mooring.trust.issuancelog import START, Checkpoint, new_record, record_name
from mooring.trust.sharedkeys import envelope
from mooring.trust.sharedkeys.keyset import SharedKeySet
from mooring.trust.storewatermark import Watermark, parse_watermark
from tests.support import etcd
from tests.support.plans import thing, views
from tests.support.registryroom import counting_entropy
from tests.support.storagedrivers import open_etcd
from tests.support.testca import ThrowawayCA

ADMINISTRATOR = UserInfo("jane", groups=(MASTERS,))
MOMENT = "2026-01-01T00:00:00Z"
HEAD = Checkpoint(2, "sha256:" + "2" * 64)


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"7\n", b"[]", b"{}", b'{"version":1}', b'{"version":1,"revision":-1,"cluster":""}'],
    ids=str,
)
def test_a_file_that_is_no_watermark_is_refused(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(ConfigError, match=f"{FILE_NAME}: "):
        read_watermark(tmp_path)
    assert WatermarkFile(tmp_path).damage
    assert "what this server remembers of its store is damaged" in caplog.text


def test_the_files_of_earlier_versions_are_taken_over(tmp_path: Path) -> None:
    (tmp_path / "store.head").write_text("7\n")
    (tmp_path / "lineage.head").write_text(f"{HEAD}\n")
    assert read_watermark(tmp_path) == Watermark(7, issuance_log=(HEAD,))
    (tmp_path / "store.head").write_text("junk")
    (tmp_path / "lineage.head").unlink()
    with pytest.raises(ConfigError, match=r"store\.head"):
        read_watermark(tmp_path)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("name", [FILE_NAME, "store.head", "lineage.head"])
def test_a_watermark_that_cannot_be_read_now_is_not_damaged_and_keeps_the_server_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    (tmp_path / name).write_bytes(
        {FILE_NAME: Watermark(7).encode(), "store.head": b"7\n"}.get(name, f"{HEAD}\n".encode())
    )
    before = os.open

    def refused(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if Path(path).name == name:
            raise OSError(code, os.strerror(code))
        return before(path, flags, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        with pytest.raises(ConfigError, match=f"{name} cannot be read: {os.strerror(code).lower()}") as caught:
            WatermarkFile(tmp_path)
    assert "damaged" not in str(caught.value)
    assert not WatermarkFile(tmp_path).damage


@pytest.mark.parametrize("name", [FILE_NAME, "store.head"])
def test_a_huge_revision_in_the_watermark_moves_no_revisions_and_closes_the_gate(tmp_path: Path, name: str) -> None:
    async def nothing(parts: RegistryParts, watermark: StoreWatermark) -> None:
        await watermark.write()

    in_registry(tmp_path, nothing)
    text = (tmp_path / FILE_NAME).read_bytes()
    if name == FILE_NAME:
        (tmp_path / name).write_bytes(replace(parse_watermark(text), revision=2**59).encode())
    else:
        (tmp_path / FILE_NAME).unlink()
        (tmp_path / name).write_text(f"{2**70}\n")

    async def closed(parts: RegistryParts, watermark: StoreWatermark) -> None:
        assert parts.registry.cache.revision < 100
        assert not watermark.is_settled
        await watermark.judge()
        await caught_up(parts)
        (found,) = tombstones.pending(
            parts.registry.views[tombstones.CONFIG_MAPS].get(tombstones.NAME, tombstones.NAMESPACE)
        ).values()
        assert "further ahead of the store" in str(found)

    in_registry(tmp_path, closed)


def test_a_worker_that_cannot_read_the_watermark_does_not_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def failing(parts: RegistryParts, watermark: StoreWatermark) -> None:
        await watermark.write()
        first = (tmp_path / FILE_NAME).read_bytes()
        watermark._file.release()
        await create(parts, "namespaces", {"metadata": {"name": "n"}})

        def refused(directory: Path) -> Watermark:
            raise ConfigError("store.mark cannot be read: too many open files")

        with monkeypatch.context() as patch:
            patch.setattr("mooring.controlplane.storewatermark.watermarkfile.read_watermark", refused)
            await watermark.write()
            await watermark.write()
        assert (tmp_path / FILE_NAME).read_bytes() == first
        await watermark.write()
        assert (tmp_path / FILE_NAME).read_bytes() != first

    in_registry(tmp_path, failing)
    assert caplog.text.count("too many open files") == 1


def in_registry(
    tmp_path: Path, test: Callable[[RegistryParts, StoreWatermark], Awaitable[None]], **settings: str
) -> None:
    """Run a test with a registry on a database file and its watermark."""

    async def body() -> None:
        config = server_config(data_dir=str(tmp_path), storage=f"sqlite:{tmp_path}/mooring.db", **settings)
        async with open_registry(config, SystemClock(), counting_entropy()) as parts:
            assert parts.watermark is not None
            if parts.registry.views["namespaces"].get("kube-system") is None:
                await create(parts, "namespaces", {"metadata": {"name": "kube-system"}})
            await test(parts, parts.watermark)

    asyncio.run(body())


async def compared(parts: RegistryParts, directory: Path, storage: Storage | None = None) -> StoreWatermark:
    """Return the watermark of another process or server, compared with the store."""
    api = RegistryApi(parts.registry, parts.registry.authorize, SystemClock(), "store-mark")
    watermark = StoreWatermark(
        WatermarkFile(directory), parts.registry, api, storage or parts.storage, SystemClock(), is_continued=True
    )
    await watermark.compare()
    return watermark


async def create(parts: RegistryParts, plural: str, obj: dict[str, Any], namespace: str = "") -> dict[str, Any]:
    change = Change(API_SERVER_USER, SystemClock().now())
    return (await parts.registry.writer.create(BY_PLURAL[plural], namespace, obj, change, WriteOptions())).obj


async def delete(parts: RegistryParts, plural: str, name: str, namespace: str = "") -> None:
    change = Change(API_SERVER_USER, SystemClock().now())
    await parts.registry.writer.delete(BY_PLURAL[plural], namespace, name, DeleteOptions(), change)


def test_the_watermark_has_what_ended_and_is_written_after_the_commit(tmp_path: Path) -> None:
    async def tombstones_of(parts: RegistryParts, watermark: StoreWatermark) -> None:
        expiry = SystemClock().now() + timedelta(hours=1)
        for token_id, expires in (
            ("abcdef", expiry),
            ("over00", SystemClock().now() - timedelta(hours=1)),
            ("endles", None),
        ):
            record = TokenRecord(
                parse_token(f"{token_id}.0123456789abcdef"), expires=expires, usages=("authentication",)
            )
            await create(parts, "secrets", to_secret(record), "kube-system")
            await delete(parts, "secrets", f"bootstrap-token-{token_id}", "kube-system")
        node = await create(parts, "nodes", {"metadata": {"name": "n1"}})
        await delete(parts, "nodes", "n1")
        await create(
            parts, "certificaterevocations", {"metadata": {"name": "serial-1f"}, "spec": {"serialNumber": "1f"}}
        )
        await create(
            parts, "certificaterevocations", {"metadata": {"name": "serial-2f"}, "spec": {"serialNumber": "2f"}}
        )
        await delete(parts, "certificaterevocations", "serial-2f")
        before = read_watermark(tmp_path)
        assert before.revision < parts.registry.cache.revision, "it lags"
        await watermark.write()
        kept = read_watermark(tmp_path)
        assert kept.revision == parts.registry.cache.revision
        assert set(kept.tombstones["token"]) == {"abcdef", "over00", "endles"}, (
            "an older store may have a later expiration"
        )
        assert set(kept.tombstones["node"]) == {"n1"}
        assert kept.tombstones["node"]["n1"]["uid"] == node["metadata"]["uid"]
        assert set(kept.tombstones["revocation"]) == {"serial-1f"}
        namespace = parts.registry.views["namespaces"].get("kube-system")
        assert namespace is not None
        assert kept.cluster == namespace["metadata"]["uid"]

    in_registry(tmp_path, tombstones_of)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600

    async def a_revocation_was_taken_back_elsewhere(parts: RegistryParts, watermark: StoreWatermark) -> None:
        assert watermark.is_settled
        await watermark.write()
        assert "revocation" not in read_watermark(tmp_path).tombstones
        assert set(read_watermark(tmp_path).tombstones["token"]) == {"abcdef", "over00", "endles"}

    async def take_back() -> None:
        storage = open_storage(f"sqlite:{tmp_path}/mooring.db", SystemClock())
        await storage.open()
        key = "/registry/mooring.dev/certificaterevocations/serial-1f"
        found = await storage.get(key)
        assert found is not None
        await storage.delete(key, expected=found.revision)
        await storage.close()

    asyncio.run(take_back())
    in_registry(tmp_path, a_revocation_was_taken_back_elsewhere)


def test_the_watermark_has_every_deleted_object_of_a_name_and_what_finalizers_hold(tmp_path: Path) -> None:
    held = {"finalizers": ["example.com/hold"]}

    async def tombstones_of(parts: RegistryParts, watermark: StoreWatermark) -> None:
        uids = []
        for _ in range(2):
            node = await create(parts, "nodes", {"metadata": {"name": "n1"}})
            uids.append(node["metadata"]["uid"])
            await delete(parts, "nodes", "n1")
        await create(parts, "nodes", {"metadata": {"name": "n2", **held}})
        record = TokenRecord(parse_token("abcdef.0123456789abcdef"), expires=None, usages=("authentication",))
        secret = to_secret(record)
        await create(parts, "secrets", {**secret, "metadata": {**secret["metadata"], **held}}, "kube-system")
        await watermark.write()
        assert set(read_watermark(tmp_path).tombstones["node"]) == {"n1"}
        await delete(parts, "nodes", "n2")
        await delete(parts, "secrets", "bootstrap-token-abcdef", "kube-system")
        await watermark.write()
        kept = read_watermark(tmp_path).tombstones
        assert (kept["node"]["n1"]["uid"], kept["node"]["n1"]["earlier"]) == (uids[1], [uids[0]])
        terminating = parts.registry.views["nodes"].get("n2")
        assert terminating is not None
        assert kept["node"]["n2"] == {
            "uid": terminating["metadata"]["uid"],
            "deletedAt": terminating["metadata"]["deletionTimestamp"],
            "recorded": True,
        }
        assert set(kept["token"]) == {"abcdef"}

    in_registry(tmp_path, tombstones_of)


def test_a_machine_that_may_create_its_node_again_has_not_ended(tmp_path: Path) -> None:
    async def tombstones_of(parts: RegistryParts, watermark: StoreWatermark) -> None:
        node = await create(parts, "nodes", {"metadata": {"name": "n1"}})
        await delete(parts, "nodes", "n1")
        await watermark.write()
        assert read_watermark(tmp_path).tombstones["node"] == {"n1": {"uid": node["metadata"]["uid"]}}

    in_registry(tmp_path, tombstones_of, node_deletion="reregisters")


def test_of_several_workers_one_writes(tmp_path: Path) -> None:
    async def two(parts: RegistryParts, watermark: StoreWatermark) -> None:
        await watermark.write()
        other = await compared(parts, tmp_path)
        (tmp_path / FILE_NAME).unlink()
        await other.write()
        assert not (tmp_path / FILE_NAME).exists()

    in_registry(tmp_path, two)


def test_a_directory_that_cannot_be_written_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def unwritable(parts: RegistryParts, watermark: StoreWatermark) -> None:
        other = await compared(parts, tmp_path / "missing")
        for _ in range(2):
            await other.write()
        assert caplog.text.count("will not be noticed") == 1

    in_registry(tmp_path, unwritable)


async def put(parts: RegistryParts, obj: dict[str, Any], data: dict[str, str]) -> None:
    """Write the entries of the list of tombstones, as a person does."""
    change = Change(ADMINISTRATOR, SystemClock().now())
    kind = BY_PLURAL["configmaps"]
    await parts.registry.writer.update(
        kind, tombstones.NAMESPACE, tombstones.NAME, {**obj, "data": data}, change, WriteOptions()
    )
    await caught_up(parts)


async def caught_up(parts: RegistryParts) -> None:
    """Return when the views have every write: on a busy machine one wait for them may be too short."""
    while not await parts.registry.reader.fresh():
        pass


def listed(parts: RegistryParts) -> dict[str, str]:
    """Return the tombstones that wait, by key."""
    return tombstones.pending(parts.registry.views["configmaps"].get(tombstones.NAME, tombstones.NAMESPACE))


def denied(parts: RegistryParts) -> set[str]:
    return {one["metadata"]["name"] for one in parts.registry.views["certificaterevocations"].list()}


def test_a_watermark_that_the_file_system_does_not_lock_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = fcntl.flock

    def refused(descriptor: int, operation: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(LOCK_NAME):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        before(descriptor, operation)

    async def nothing(parts: RegistryParts, watermark: StoreWatermark) -> None:
        await watermark.write()

    monkeypatch.setattr(fcntl, "flock", refused)
    in_registry(tmp_path, nothing)
    assert caplog.text.count("will not be noticed: the lock file") == 1


def test_a_store_of_another_cluster_is_older(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def end(parts: RegistryParts, watermark: StoreWatermark) -> None:
        await create(parts, "nodes", {"metadata": {"name": "n1"}})
        await delete(parts, "nodes", "n1")

    in_registry(tmp_path, end)
    for file in tmp_path.glob("mooring.db*"):
        file.unlink()

    async def other(parts: RegistryParts, watermark: StoreWatermark) -> None:
        assert not watermark.is_settled
        await watermark.write()
        assert read_watermark(tmp_path).tombstones["node"], "the watermark stays as it was"
        await watermark.judge()
        await watermark.judge()
        await caught_up(parts)
        assert tombstones.refusal(parts.registry.views).startswith(
            "the store is older than what a server remembers, and 1 tombstones wait"
        )
        value = tombstones.ended(parts.registry.views, tombstones.Tombstone.NODE, "n1")
        assert value is not None
        assert value["name"] == "n1"
        identity = {"metadata": {"name": "n1"}, "spec": {"nodeUID": value["uid"]}}
        await create(parts, "nodeidentities", identity)
        await delete(parts, "configmaps", tombstones.NAME, tombstones.NAMESPACE)
        await watermark.judge()
        assert watermark.is_settled

    in_registry(tmp_path, other)
    assert "node.n1" in caplog.text


def is_settled(watermark: StoreWatermark) -> bool:
    return watermark.is_settled


def test_a_store_that_is_restored_while_the_server_runs_is_judged_before_the_watermark_is_written(
    tmp_path: Path,
) -> None:
    async def running(parts: RegistryParts, watermark: StoreWatermark) -> None:
        saved = await parts.storage.revision()
        await create(
            parts, "certificaterevocations", {"metadata": {"name": "serial-1f"}, "spec": {"serialNumber": "1f"}}
        )
        await watermark.write()
        for _ in range(2):  # a second restore is another one
            floor = await parts.storage.revision()
            await record_restore(parts.storage, saved, floor)
            await delete(parts, "certificaterevocations", "serial-1f")  # as the cache sees it that reads the store
            await watermark.write()
            assert not is_settled(watermark)
            assert set(read_watermark(tmp_path).tombstones["revocation"]) == {"serial-1f"}
            await watermark.judge()
            assert denied(parts) == {"serial-1f"}
            assert is_settled(watermark)
            await create(
                parts, "certificaterevocations", {"metadata": {"name": "serial-2f"}, "spec": {"serialNumber": "2f"}}
            )
            await watermark.write()
            assert is_settled(watermark), "a restore is judged once"
            assert set(read_watermark(tmp_path).tombstones["revocation"]) == {"serial-1f", "serial-2f"}
            await delete(parts, "certificaterevocations", "serial-2f")
            await watermark.write()

    in_registry(tmp_path, running)


def test_a_former_server_token_is_noticed_although_the_generation_of_the_keys_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test with a start that stores newer keys of `pki` in the row of a restored store, which counts the generation up."""
    monkeypatch.setattr(envelope, "N", 16)
    ca = ThrowawayCA()
    keys = SharedKeySet.of({"ca.crt": Secret(ca.authority.certificate_pem), "ca.key": Secret(private_key_pem(ca.key))})

    async def put(parts: RegistryParts, created: int, generation: int) -> None:
        term = envelope.TokenTerm(Secret(b"a" * 32), created)
        row, _ = envelope.seal(envelope.claim("c", keys, generation - 1), keys, (term,), counting_entropy())
        found = await parts.storage.get(envelope.KEY)
        if found is not None:
            await parts.storage.delete(envelope.KEY, expected=found.revision)
        await parts.storage.create(envelope.KEY, envelope.encode(row))

    async def restored(parts: RegistryParts, watermark: StoreWatermark) -> None:
        saved = await parts.storage.revision()
        await put(parts, created=200, generation=3)
        await watermark.write()
        assert read_watermark(tmp_path).tombstones["server-token"] == {"keys": {"generation": 3, "created": 200}}
        floor = await parts.storage.revision()
        await record_restore(parts.storage, saved, floor)
        await put(parts, created=100, generation=4)
        await watermark.write()
        await watermark.judge()
        await caught_up(parts)
        assert set(listed(parts)) == {"server-token.keys"}

    in_registry(tmp_path, restored)


def test_two_servers_add_what_each_remembers(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        watermark = Watermark(5, "another", tombstones={"node": {f"n-{name}": {"uid": "u1", "deletedAt": MOMENT}}})
        (tmp_path / name / FILE_NAME).write_bytes(watermark.encode())

    async def both(parts: RegistryParts, watermark: StoreWatermark) -> None:
        for name in ("one", "two"):
            server = await compared(parts, tmp_path / name)
            await server.judge()
            await caught_up(parts)
        assert set(listed(parts)) == {"node.n-one", "node.n-two"}

    in_registry(tmp_path, both)


@pytest.mark.parametrize(("plural", "namespace", "name"), [("nodes", "", "n1"), ("secrets", "kube-system", "abcdef")])
def test_a_deletion_after_an_acceptance_is_another_tombstone(
    tmp_path: Path, plural: str, namespace: str, name: str
) -> None:
    """Restore, accept, end the same object again, and restore a copy from between: it has the object and the acceptance."""
    kind = "node" if plural == "nodes" else "token"
    record = TokenRecord(parse_token("abcdef.0123456789abcdef"), expires=None, usages=("authentication",))
    obj = {"metadata": {"name": "n1"}} if plural == "nodes" else to_secret(record)
    made: list[dict[str, Any]] = []

    async def before(parts: RegistryParts, watermark: StoreWatermark) -> None:
        made.append(await create(parts, plural, obj, namespace))

    async def judged(parts: RegistryParts, watermark: StoreWatermark) -> None:
        uid = made[0]["metadata"]["uid"]
        await watermark.judge()
        config_map = await latest(parts)
        await put(parts, config_map, {tombstones.ACCEPTED + key: text for key, text in config_map["data"].items()})
        await watermark.judge()
        assert watermark.is_settled
        await watermark.write()
        assert read_watermark(tmp_path).tombstones[kind] == {name: {"uid": "u0"}}, (
            "of the other object nothing was accepted"
        )
        await delete(parts, plural, obj["metadata"]["name"], namespace)
        await watermark.write()
        again = read_watermark(tmp_path).tombstones[kind][name]
        assert (again["uid"], again["waivers"]) == (uid, 1)
        copy = {field: value for field, value in made[0]["metadata"].items() if field not in ("uid", "resourceVersion")}
        back = await create(parts, plural, {**obj, "metadata": copy}, namespace)
        value = {**again, "uid": back["metadata"]["uid"]}
        text = tombstones.entry(name, {"uid": back["metadata"]["uid"]})
        await put(parts, await latest(parts), {f"{tombstones.ACCEPTED}{kind}.{name}": text})
        (tmp_path / FILE_NAME).write_bytes(Watermark(5, "another", tombstones={kind: {name: value}}).encode())
        server = await compared(parts, tmp_path)
        await server.judge()
        await caught_up(parts)
        assert set(listed(parts)) == {f"{kind}.{name}"}
        assert not server.is_settled

    in_registry(tmp_path, before)
    (tmp_path / FILE_NAME).write_bytes(
        Watermark(
            5, "another", tombstones={kind: {name: {"uid": made[0]["metadata"]["uid"], "earlier": ["u0"]}}}
        ).encode()
    )
    in_registry(tmp_path, judged)


async def latest(parts: RegistryParts) -> dict[str, Any]:
    await caught_up(parts)
    found = parts.registry.views["configmaps"].get(tombstones.NAME, tombstones.NAMESPACE)
    assert found is not None
    return found


def test_a_watermark_that_is_damaged_again_after_an_acceptance_is_asked_about_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unwritten(watermark: StoreWatermark) -> None:
        """Write nothing: the watermark of the registry would take the place of the damaged file."""

    monkeypatch.setattr(StoreWatermark, "write", unwritten)

    async def damaged_twice(parts: RegistryParts, watermark: StoreWatermark) -> None:
        for second in (1, 2):
            (tmp_path / FILE_NAME).write_bytes(b"")
            os.utime(tmp_path / FILE_NAME, (second, second))
            server = await compared(parts, tmp_path)
            await server.judge()
            config_map = await latest(parts)
            assert list(listed(parts)) == [f"mark.{tmp_path.name}"]
            accepted = {
                tombstones.ACCEPTED + key.removeprefix(tombstones.ACCEPTED): text for key, text in listed(parts).items()
            }
            await put(parts, config_map, accepted)
            await server.judge()
            assert server.is_settled

    in_registry(tmp_path, damaged_twice)


def test_tokens_that_had_expired_make_room_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooring.trust.storewatermark.MAX_TOMBSTONES", 2)

    async def full(parts: RegistryParts, watermark: StoreWatermark) -> None:
        for token_id, hours in (("first0", 1), ("over00", -1), ("last00", 1)):
            expires = SystemClock().now() + timedelta(hours=hours)
            record = TokenRecord(
                parse_token(f"{token_id}.0123456789abcdef"), expires=expires, usages=("authentication",)
            )
            await create(parts, "secrets", to_secret(record), "kube-system")
            await delete(parts, "secrets", f"bootstrap-token-{token_id}", "kube-system")
        await watermark.write()
        assert set(read_watermark(tmp_path).tombstones["token"]) == {"first0", "last00"}

    in_registry(tmp_path, full)


def test_of_many_revocations_in_a_store_the_newest_are_remembered_whatever_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mooring.trust.storewatermark.MAX_TOMBSTONES", 2)
    days = {"key-new": "03", "serial-newer": "04", "serial-old": "01", "serial-older": "02"}
    entries = [
        thing(name, metadata={"creationTimestamp": f"2026-01-{day}T00:00:00Z"}, spec={}) for name, day in days.items()
    ]
    remembered = RememberedTombstones(
        Watermark(), views(certificaterevocations=entries), SystemClock(), asyncio.Event(), tmp_path
    )
    remembered.read_state()
    assert set(remembered.tombstones["revocation"]) == {"key-new", "serial-newer"}


def test_more_tombstones_than_the_list_holds_count_until_they_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test with two servers that remember different tombstones. Each says that it has more until it lists the rest of its own."""
    monkeypatch.setattr(tombstones, "MAX_PENDING", 2)
    for server, count in (("one", 3), ("two", 2)):
        (tmp_path / server).mkdir()
        gone = {f"{server}-{number}": {"uid": "u1", "deletedAt": MOMENT} for number in range(count)}
        (tmp_path / server / FILE_NAME).write_bytes(Watermark(5, "another", tombstones={"node": gone}).encode())

    async def settle_them(parts: RegistryParts, watermark: StoreWatermark) -> None:
        servers = []
        for name in ("one", "two"):
            server = await compared(parts, tmp_path / name)
            servers.append(server)
        settled: list[str] = []
        for _ in range(3):
            for server in servers:
                await server.judge()
                await caught_up(parts)
            assert tombstones.refusal(parts.registry.views)
            nodes = sorted(key for key in listed(parts) if not tombstones.is_more(key))
            unlisted = 5 - len(settled) - len(nodes)
            assert bool(tombstones.unknown(parts.registry.views, tombstones.Tombstone.NODE)) is (unlisted > 0)
            assert len(nodes) == min(2, 5 - len(settled))
            assert not tombstones.unknown(parts.registry.views, tombstones.Tombstone.TOKEN)
            found = parts.registry.views["configmaps"].get(tombstones.NAME, tombstones.NAMESPACE)
            assert found is not None
            await put(
                parts,
                found,
                {tombstones.ACCEPTED + key if key in nodes else key: text for key, text in found["data"].items()},
            )
            settled += nodes
        assert len(set(settled)) == 5
        for server in servers:
            await server.judge()
            assert server.is_settled
        assert listed(parts) == {}

    in_registry(tmp_path, settle_them)


def test_further_tombstones_that_are_over_before_they_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tombstones, "MAX_PENDING", 0)
    (tmp_path / "one").mkdir()
    watermark = Watermark(5, "another", tombstones={"node": {"n1": {"uid": "u1", "deletedAt": MOMENT}}})
    (tmp_path / "one" / FILE_NAME).write_bytes(watermark.encode())

    async def judged(parts: RegistryParts, watermark: StoreWatermark) -> None:
        server = await compared(parts, tmp_path / "one")
        await server.judge()
        assert tombstones.unknown(parts.registry.views, tombstones.Tombstone.NODE)
        await create(parts, "nodeidentities", {"metadata": {"name": "n1"}, "spec": {"nodeUID": "u1"}})
        await server.judge()
        assert server.is_settled
        assert listed(parts) == {}

    in_registry(tmp_path, judged)


def test_revocations_are_made_again_whatever_else_waits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    until = {"nodeName": "n1", "issuedBefore": "2026-01-01T00:00:00Z", "reason": "unspecified"}
    revocations: dict[str, dict[str, Any]] = {
        "serial-1f": {"serialNumber": "1f", "reason": "unspecified"},
        "serial-2f": {"serialNumber": "2f", "reason": "keyCompromise", "message": "laptop stolen"},
        "node-n1": {**until, "issuedBefore": "2026-02-01T00:00:00Z", "knownSerialNumbers": ["3f", "2f"]},
        "key-" + "0" * 64: {"publicKey": "sha256:" + "0" * 64, "knownSerialNumbers": ["4f"], "reason": "unspecified"},
    }
    watermark = Watermark(
        5, "another", tombstones={"revocation": revocations, "node": {"n1": {"uid": "u1", "deletedAt": MOMENT}}}
    )
    (tmp_path / FILE_NAME).write_bytes(watermark.encode())

    async def judged(parts: RegistryParts, watermark: StoreWatermark) -> None:
        await create(parts, "certificaterevocations", {"metadata": {"name": "node-n1"}, "spec": until})
        await watermark.judge()
        await caught_up(parts)
        assert set(listed(parts)) == {"node.n1"}
        assert denied(parts) == {*revocations, "serial-3f"}, "with a certificate that the clock would let through"
        view = parts.registry.views["certificaterevocations"]
        later, stolen = view.get("node-n1"), view.get("serial-2f")
        assert later is not None
        assert later["spec"]["issuedBefore"] == "2026-02-01T00:00:00Z"
        assert stolen is not None
        assert stolen["spec"]["message"] == "laptop stolen"
        await delete(parts, "certificaterevocations", "serial-1f")
        await watermark.judge()
        await caught_up(parts)
        assert "serial-1f" not in denied(parts), "an administrator has taken it back"

    in_registry(tmp_path, judged)
    assert "4 revocations that it lacked were made again" in caplog.text


@pytest.mark.parametrize(
    ("damage", "is_deleted"),
    [
        pytest.param(("DELETE FROM live WHERE key LIKE '%/serial-1f'",), False, id="lost"),
        pytest.param(
            ("DELETE FROM live WHERE key LIKE '%/serial-1f'", "DELETE FROM log WHERE key LIKE '%/serial-1f'"),
            False,
            id="lost with its change",
        ),
        pytest.param(
            (
                "DELETE FROM live WHERE key LIKE '%/serial-1f'",
                "DELETE FROM log WHERE key LIKE '%/serial-1f'",
                "UPDATE log SET value = substr(value, 1, 9) WHERE key LIKE '%/configmaps/default/other'",
            ),
            False,
            id="lost with its change, beside a damaged one",
        ),
        pytest.param((), True, id="taken back"),
        pytest.param(
            ("UPDATE log SET value = substr(value, 1, 9) WHERE key LIKE '%/configmaps/default/other'",),
            True,
            id="taken back, beside a damaged one",
        ),
    ],
)
def test_a_revocation_that_the_store_lost_is_made_again_and_one_that_was_deleted_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: tuple[str, ...], is_deleted: bool
) -> None:
    """The row of one is gone from the file; the other was deleted by a server that was killed before it wrote its watermark."""
    kept = tmp_path / "kept"

    async def revoke(parts: RegistryParts, watermark: StoreWatermark) -> None:
        await parts.storage.create("/registry/configmaps/default/other", b'{"metadata": {"name": "other"}}')
        spec = {"serialNumber": "1f"}
        await create(parts, "certificaterevocations", {"metadata": {"name": "serial-1f"}, "spec": spec})
        await watermark.write()
        kept.write_bytes((tmp_path / FILE_NAME).read_bytes())
        if is_deleted:
            await delete(parts, "certificaterevocations", "serial-1f")

    async def judged(parts: RegistryParts, watermark: StoreWatermark) -> None:
        assert watermark.is_settled is is_deleted
        await watermark.judge()
        await caught_up(parts)
        assert (parts.registry.views["certificaterevocations"].get("serial-1f") is None) is is_deleted
        assert watermark.is_settled
        assert ("lost 1 objects that deny access" in caplog.text) is not is_deleted

    in_registry(tmp_path, revoke)
    if is_deleted:
        kept.replace(tmp_path / FILE_NAME)
    with closing(sqlite3.connect(tmp_path / "mooring.db")) as database, database:
        for statement in damage:
            assert database.execute(statement).rowcount == 1
    in_registry(tmp_path, judged)


@pytest.mark.parametrize("is_deleted", [False, True], ids=["lost", "deleted by a person"])
def test_a_machine_whose_identity_the_store_lost_stays_deleted(tmp_path: Path, is_deleted: bool) -> None:
    async def end(parts: RegistryParts, watermark: StoreWatermark) -> None:
        await create(parts, "nodes", {"metadata": {"name": "n1"}})
        await delete(parts, "nodes", "n1")
        if is_deleted:
            await delete(parts, "nodeidentities", "n1")
        await watermark.write()

    async def judged(parts: RegistryParts, watermark: StoreWatermark) -> None:
        assert watermark.is_settled is is_deleted
        await watermark.judge()
        await caught_up(parts)
        waiting = tombstones.pending(
            parts.registry.views[tombstones.CONFIG_MAPS].get(tombstones.NAME, tombstones.NAMESPACE)
        )
        assert list(waiting) == ([] if is_deleted else ["node.n1"])

    in_registry(tmp_path, end)
    with closing(sqlite3.connect(tmp_path / "mooring.db")) as database, database:
        database.execute("DELETE FROM live WHERE key LIKE '%/nodeidentities/n1'")
    in_registry(tmp_path, judged)


@pytest.mark.parametrize("is_of_another", [False, True], ids=["its own", "of another machine"])
def test_an_identity_counts_as_recorded_from_the_first_start_that_sees_it(tmp_path: Path, is_of_another: bool) -> None:
    """The watermark is of a version that did not note whether the NodeIdentity says that the Node was deleted."""

    async def end(parts: RegistryParts, watermark: StoreWatermark) -> None:
        await create(parts, "nodes", {"metadata": {"name": "n1"}})
        await delete(parts, "nodes", "n1")
        await watermark.write()
        if is_of_another:
            await delete(parts, "nodeidentities", "n1")
            await create(parts, "nodeidentities", {"metadata": {"name": "n1"}})

    async def nothing(parts: RegistryParts, watermark: StoreWatermark) -> None:
        assert watermark.is_settled

    async def judged(parts: RegistryParts, watermark: StoreWatermark) -> None:
        assert watermark.is_settled is is_of_another

    in_registry(tmp_path, end)
    older = read_watermark(tmp_path)
    node = {name: value for name, value in older.tombstones["node"]["n1"].items() if name != "recorded"}
    (tmp_path / FILE_NAME).write_bytes(replace(older, tombstones={"node": {"n1": node}}).encode())
    in_registry(tmp_path, nothing)
    with closing(sqlite3.connect(tmp_path / "mooring.db")) as database, database:
        database.execute("DELETE FROM live WHERE key LIKE '%/nodeidentities/n1'")
    in_registry(tmp_path, judged)


def test_revocations_are_made_again_while_the_list_of_tombstones_cannot_be_read(tmp_path: Path) -> None:
    spec = {"serialNumber": "1f", "reason": "unspecified"}
    watermark = Watermark(5, "another", tombstones={"revocation": {"serial-1f": spec}})
    (tmp_path / FILE_NAME).write_bytes(watermark.encode())

    async def judged(parts: RegistryParts, watermark: StoreWatermark) -> None:
        await parts.storage.create(f"/registry/configmaps/{tombstones.NAMESPACE}/{tombstones.NAME}", b"junk")
        await caught_up(parts)
        assert "cannot be read" in tombstones.refusal(parts.registry.views)
        await watermark.judge()
        assert denied(parts) == {"serial-1f"}
        assert not watermark.is_settled

    in_registry(tmp_path, judged)


@pytest.mark.parametrize(
    ("name", "spec", "why"),
    [
        pytest.param(
            "serial-damaged", {"serialNumber": "damaged"}, "serial-damaged cannot be made again", id="refused"
        ),
        pytest.param(
            "node-n1", {"nodeName": "n1", "issuedBefore": "junk"}, "no value that can be read", id="no moment"
        ),
    ],
)
def test_a_revocation_that_cannot_be_made_again_closes_the_gate(
    tmp_path: Path, name: str, spec: dict[str, Any], why: str
) -> None:
    watermark = Watermark(5, "another", tombstones={"revocation": {name: spec}})
    (tmp_path / FILE_NAME).write_bytes(watermark.encode())

    async def judged(parts: RegistryParts, watermark: StoreWatermark) -> None:
        moment = {"nodeName": "n1", "issuedBefore": MOMENT}
        await create(parts, "certificaterevocations", {"metadata": {"name": "node-n1"}, "spec": moment})
        await watermark.judge()
        await caught_up(parts)
        (entry,) = listed(parts).values()
        assert why in entry
        found = parts.registry.views["configmaps"].get(tombstones.NAME, tombstones.NAMESPACE)
        assert found is not None
        await put(parts, found, {tombstones.ACCEPTED + key: text for key, text in listed(parts).items()})
        await watermark.judge()
        assert watermark.is_settled

    in_registry(tmp_path, judged)


def test_the_watermark_has_known_serial_numbers_of_a_node_where_all_of_them_are_revoked(tmp_path: Path) -> None:
    """Test with an entry that revokes up to its write, and one that an administrator gave an earlier moment."""
    expires = rfc3339(SystemClock().now() + timedelta(days=9))
    keys = [{"publicKey": "sha256:" + "0" * 64, "serialNumber": "1f", "notAfter": expires}]

    async def revoke(parts: RegistryParts, watermark: StoreWatermark) -> None:
        for name in ("n1", "n2"):
            await create(parts, "nodeidentities", {"metadata": {"name": name}, "spec": {"keys": keys}})
        for spec in ({"nodeName": "n1"}, {"nodeName": "n2", "issuedBefore": MOMENT}):
            await create(
                parts, "certificaterevocations", {"metadata": {"name": f"node-{spec['nodeName']}"}, "spec": spec}
            )
        await watermark.write()
        kept = read_watermark(tmp_path).tombstones["revocation"]
        assert kept["node-n1"]["knownSerialNumbers"] == ["1f"]
        assert "knownSerialNumbers" not in kept["node-n2"]

    in_registry(tmp_path, revoke)


def test_a_record_of_the_issuance_log_that_is_gone_stays_as_evidence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def remember(parts: RegistryParts, watermark: StoreWatermark) -> None:
        return

    in_registry(tmp_path, remember)
    watermark = read_watermark(tmp_path)
    (tmp_path / FILE_NAME).write_bytes(replace(watermark, issuance_log=(HEAD,)).encode())
    in_registry(tmp_path, remember)
    assert f"the store has no record {HEAD}" in caplog.text
    assert read_watermark(tmp_path).issuance_log == (HEAD,)


def test_a_server_that_was_stopped_while_others_trimmed_the_log_starts_as_usual(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, head = new_record(START, [{"time": MOMENT, "event": "Issued", "notAfter": MOMENT}], None)
    trim = {"time": MOMENT, "event": "Trimmed", "checkpoint": str(head), "notAfter": MOMENT}
    second, end = new_record(head, [trim], None)

    async def trimmed(parts: RegistryParts, watermark: StoreWatermark) -> None:
        for record in (first, second):
            await create(parts, "lineagerecords", record)
        await delete(parts, "lineagerecords", record_name(1))

    async def remember(parts: RegistryParts, watermark: StoreWatermark) -> None:
        assert watermark.is_settled

    in_registry(tmp_path, trimmed)
    watermark = read_watermark(tmp_path)
    assert watermark.issuance_log == (end,)
    (tmp_path / FILE_NAME).write_bytes(replace(watermark, issuance_log=(head,)).encode())
    in_registry(tmp_path, remember)
    assert "issuance log" not in caplog.text
    assert read_watermark(tmp_path).issuance_log == (end,)


async def store_at(revision: int) -> MemoryStorage:
    storage = MemoryStorage()
    await storage.open()
    await storage.advance(revision)
    return storage


@pytest.mark.parametrize(
    ("seen", "store", "after"),
    [
        pytest.param(0, 5, 5, id="without a file it stays"),
        pytest.param(5, 5, 5, id="the same revision is no older copy"),
        pytest.param(5, 9, 9, id="nor is a newer one, which another server wrote"),
        pytest.param(9, 5, 9 + JUMP, id="an older one goes on beyond"),
    ],
)
def test_the_revisions_of_a_store_at_the_start(tmp_path: Path, seen: int, store: int, after: int) -> None:
    if seen:
        (tmp_path / FILE_NAME).write_bytes(Watermark(seen).encode())

    async def scenario() -> None:
        storage = await store_at(store)
        await continue_beyond(WatermarkFile(tmp_path), storage)
        assert await storage.revision() >= after
        assert await read_restores(storage) == ((Restore(store, after),) if after > store else ())
        if after > store:
            with pytest.raises(CompactedError):
                await anext(aiter(storage.watch("/", after=seen)))

    asyncio.run(scenario())


def test_of_two_servers_that_start_at_once_one_advances_and_a_store_that_does_not_is_told(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(Watermark(9).encode())

    async def start(advances: Callable[[MemoryStorage], bool]) -> int:
        storage, calls = await store_at(5), 0
        advance = storage.advance

        async def refused(revision: int) -> None:
            nonlocal calls
            calls += 1
            if advances(storage):
                await advance(revision)  # the other server
            raise StorageError("advanced by another process meanwhile")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(storage, "advance", refused)
            await continue_beyond(WatermarkFile(tmp_path), storage)
        return calls

    assert asyncio.run(start(lambda storage: True)) == 1
    with pytest.raises(StorageError, match="another process"):
        asyncio.run(start(lambda storage: False))
    assert TRIES > 1


def test_a_database_file_that_was_replaced_by_an_older_copy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    database, copy = tmp_path / "mooring.db", tmp_path / "copy.db"
    config = server_config(data_dir=str(tmp_path), storage=f"sqlite:{database}")

    async def serve() -> None:
        async with open_registry(config, SystemClock(), counting_entropy()) as parts:
            await parts.storage.create("/registry/secrets/default/a", b"{}")
            await caught_up(parts)

    asyncio.run(serve())
    before = read_watermark(tmp_path).revision
    shutil.copy(database, copy)

    async def write_more() -> None:
        async with open_registry(config, SystemClock(), counting_entropy()) as parts:
            for n in range(3):
                await parts.storage.create(f"/registry/secrets/default/{n}", b"{}")
            await caught_up(parts)

    asyncio.run(write_more())
    seen = read_watermark(tmp_path).revision
    assert seen > before
    assert "restored from an older copy" not in caplog.text
    for file in tmp_path.glob("mooring.db*"):
        file.unlink()
    shutil.copy(copy, database)

    async def restart() -> int:
        async with open_registry(config, SystemClock(), counting_entropy()) as parts:
            return parts.registry.cache.revision

    assert asyncio.run(restart()) >= seen + JUMP
    assert f"the store is at revision {before}, and this server has seen revision {seen}" in caplog.text


def test_a_copy_to_which_another_server_has_written_since_is_older(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Test with a server of an empty directory, which starts first on the copy, and writes more than was lost."""
    copy = tmp_path / "copy"

    async def begin(parts: RegistryParts, watermark: StoreWatermark) -> None:
        await create(parts, "nodes", {"metadata": {"name": "n1"}})

    async def end(parts: RegistryParts, watermark: StoreWatermark) -> None:
        await delete(parts, "nodes", "n1")
        await create(
            parts, "certificaterevocations", {"metadata": {"name": "serial-1f"}, "spec": {"serialNumber": "1f"}}
        )

    async def write_more(parts: RegistryParts, watermark: StoreWatermark) -> None:
        for n in range(30):
            await create(parts, "nodes", {"metadata": {"name": f"other-{n}"}})

    in_registry(tmp_path, begin)
    shutil.copytree(tmp_path, copy, ignore=lambda *_: {FILE_NAME, f"{FILE_NAME}.lock", "copy"})
    in_registry(tmp_path, end)
    in_registry(copy, write_more)
    for file in tmp_path.glob("mooring.db*"):
        file.unlink()
    for file in copy.glob("mooring.db*"):
        shutil.copy(file, tmp_path)
    seen = read_watermark(tmp_path).revision

    async def noticed(parts: RegistryParts, watermark: StoreWatermark) -> None:
        assert not watermark.is_continued
        assert parts.registry.cache.revision > seen + JUMP
        await watermark.judge()
        await caught_up(parts)
        assert set(listed(parts)) == {"node.n1"}
        assert denied(parts) == {"serial-1f"}
        accepted = {tombstones.ACCEPTED + key: text for key, text in listed(parts).items()}
        await parts.registry.writer.update(
            BY_PLURAL[tombstones.CONFIG_MAPS],
            tombstones.NAMESPACE,
            tombstones.NAME,
            {"metadata": {"name": tombstones.NAME, "namespace": tombstones.NAMESPACE}, "data": accepted},
            Change(ADMINISTRATOR, SystemClock().now()),
            WriteOptions(),
        )
        await watermark.judge()
        assert is_settled(watermark)

    async def settled(parts: RegistryParts, watermark: StoreWatermark) -> None:
        assert watermark.is_continued
        assert is_settled(watermark)

    in_registry(tmp_path, noticed)
    in_registry(tmp_path, settled)
    assert caplog.text.count("other servers have written to it since") == 1


def test_the_store_of_a_copy_of_the_data_directory_is_another_one(tmp_path: Path) -> None:
    """The copy has come further, and has compacted the changes by which a loss would be noticed."""
    copy = tmp_path / "copy"

    async def begin(parts: RegistryParts, watermark: StoreWatermark) -> None:
        await create(parts, "nodes", {"metadata": {"name": "n1"}})
        await create(parts, "nodes", {"metadata": {"name": "n2"}})
        await delete(parts, "nodes", "n2")
        await watermark.write()

    async def end(parts: RegistryParts, watermark: StoreWatermark) -> None:
        await delete(parts, "nodes", "n1")
        await watermark.write()

    async def end_more(parts: RegistryParts, watermark: StoreWatermark) -> None:
        for number in range(3):
            await create(parts, "nodes", {"metadata": {"name": f"other-{number}"}})
            await delete(parts, "nodes", f"other-{number}")
            await watermark.write()
        for number in range(30):
            await create(parts, "nodes", {"metadata": {"name": f"further-{number}"}})
        await parts.storage.compact(await parts.storage.revision())

    async def noticed(parts: RegistryParts, watermark: StoreWatermark) -> None:
        assert not watermark.is_settled
        await watermark.judge()
        await caught_up(parts)
        assert set(listed(parts)) == {"node.n1"}

    in_registry(tmp_path, begin)
    shutil.copytree(tmp_path, copy, ignore=lambda *_: {"copy"})
    in_registry(tmp_path, end)
    in_registry(copy, end_more)
    for file in tmp_path.glob("mooring.db*"):
        file.unlink()
    for file in copy.glob("mooring.db*"):
        shutil.copy(file, tmp_path)
    in_registry(tmp_path, noticed)


def test_a_store_that_was_emptied_is_told_in_one_line_although_nothing_had_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = tmp_path / "mooring.db"
    config = server_config(data_dir=str(tmp_path), storage=f"sqlite:{database}")

    async def is_continued() -> bool:
        async with open_registry(config, SystemClock(), counting_entropy()) as parts:
            assert parts.watermark is not None
            await parts.watermark.judge()
            await parts.storage.create(f"/registry/secrets/default/{await parts.storage.revision()}", b"{}")
            await caught_up(parts)
            return parts.watermark.is_continued

    assert [asyncio.run(is_continued()) for _ in range(3)] == [True] * 3
    assert "emptied" not in caplog.text
    for file in tmp_path.glob("mooring.db*"):
        file.unlink()
    assert not asyncio.run(is_continued())
    told = [record.getMessage() for record in caplog.records if (record.name, record.levelname) == ("mooring", "ERROR")]
    assert ["emptied" in one for one in told] == [True]
    assert asyncio.run(is_continued()), "the watermark is of this store now"


@pytest.mark.skipif(bool(etcd.MISSING), reason=etcd.MISSING or "etcd is installed")
def test_an_etcd_that_was_restored_while_every_server_was_stopped(tmp_path: Path) -> None:
    """Test with a member that is stopped, loses its newest writes to a restore, and is started; a second server is up already."""
    snapshot = tmp_path / "snapshot"

    async def write(count: int) -> int:
        storage = open_etcd(cluster, "/registry")
        await storage.open()
        for n in range(count):
            await storage.create(f"/{count}/{n}", b"")
        revision = await storage.revision()
        await storage.close()
        return revision

    async def start() -> None:
        running, starting = open_etcd(cluster, "/registry"), open_etcd(cluster, "/registry")
        await running.open()
        await starting.open()
        await continue_beyond(WatermarkFile(tmp_path), starting)
        assert await running.revision() > seen + JUMP, "every request asks for it"
        entry = await running.create("/later", b"")
        assert entry.revision > seen + JUMP
        assert (await starting.range("/")).revision >= entry.revision
        await running.close()
        await starting.close()

    (tmp_path / "etcd").mkdir()
    with etcd.running(tmp_path / "etcd") as cluster:
        (member,) = cluster.members
        asyncio.run(write(2))
        cluster.control("snapshot", "save", str(snapshot))
        seen = asyncio.run(write(20))
        (tmp_path / FILE_NAME).write_bytes(Watermark(seen).encode())
        member.kill()
        shutil.rmtree(member.data)
        cluster.restore(member, snapshot)
        member.start()
        cluster.await_healthy()
        asyncio.run(start())


def test_a_stop_waits_for_no_store_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(parts: RegistryParts, watermark: StoreWatermark) -> None:
        monkeypatch.setattr("mooring.controlplane.storewatermark.storewatermark.LAST_WRITE_SECONDS", 0.0)
        monkeypatch.setattr(
            "mooring.controlplane.storewatermark.storewatermark.shared_keys",
            lambda storage: asyncio.get_running_loop().create_future(),
        )

    in_registry(tmp_path, silent)
    assert read_watermark(tmp_path).server, "what was written before is there"
