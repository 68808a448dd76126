"""Test that several servers on one store grant a value that no two Services may share only once."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mooring.api.core.service import IP_ADDRESS_PREFIX, NODE_PORT_PREFIX
from mooring.api.core.servicevalidation import decode_record, is_allocated
from mooring.apimachinery.options import DeleteOptions
from mooring.apimachinery.schema import Obj
from mooring.clock import SystemClock
from mooring.errors import AlreadyExistsError, InvalidError, StorageError
from mooring.registry.admission.request import Admission
from mooring.registry.write.claims import GRACE
from mooring.storage.contract import Entry, KeyExistsError, RevisionMismatchError, Storage
from mooring.storage.memory import MemoryStorage
from mooring.storage.sqlite.driver import SqliteStorage
from tests.support.registryroom import NAMESPACES, Room, counting_entropy, in_room, open_room

STORED_VALUES = Path(__file__).parent.parent / "vectors" / "storage" / "kube-apiserver.json"
ADDRESS = "10.96.0.9"
TAKEN = "already allocated"


def service(name: str, **spec: Any) -> Obj:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}


async def claimed(storage: Storage, prefix: str = IP_ADDRESS_PREFIX) -> set[str]:
    return {entry.key.removeprefix(prefix) for entry in (await storage.range(prefix)).entries}


@asynccontextmanager
async def two_servers(directory: Path) -> AsyncIterator[tuple[Room, Room]]:
    """Two registries, each with a connection of its own to one SQLite file. Both draw the same entropy, so they choose alike."""
    async with AsyncExitStack() as stack:
        rooms = []
        streams = [counting_entropy(), counting_entropy()]

        def entropy(index: int, size: int) -> bytes:
            return streams[index](size)

        for index in range(2):
            storage = SqliteStorage(directory / "mooring.db", SystemClock())
            await storage.open()
            stack.push_async_callback(storage.close)
            rooms.append(await stack.enter_async_context(open_room(storage, entropy=partial(entropy, index))))
        for name in NAMESPACES:
            await rooms[0].create("namespaces", {"metadata": {"name": name}})
        streams[:] = [counting_entropy(), counting_entropy()]
        yield rooms[0], rooms[1]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"clusterIP": ADDRESS}, id="an address"),
        pytest.param({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30001}]}, id="a node port"),
    ],
)
def test_two_servers_asked_for_the_same_at_once_grant_it_once(spec: Obj, tmp_path: Path) -> None:
    async def body() -> None:
        async with two_servers(tmp_path) as servers:
            for number in range(10):
                told = await asyncio.gather(
                    *(room.create("services", service(f"s{number}-{i}", **spec)) for i, room in enumerate(servers)),
                    return_exceptions=True,
                )
                refused = [one for one in told if isinstance(one, InvalidError)]
                assert len(refused) == 1
                assert TAKEN in refused[0].message
                (granted,) = await servers[0].names("services")
                await servers[1].delete("services", granted)
            assert await claimed(servers[0].storage) == set()
            assert await claimed(servers[0].storage, NODE_PORT_PREFIX) == set()

    asyncio.run(body())


def test_what_servers_choose_at_once_differs(tmp_path: Path) -> None:
    async def body() -> None:
        async with two_servers(tmp_path) as servers:
            both = [room.create("services", service(f"s{i}", type="NodePort")) for i, room in enumerate(servers)]
            specs = [stored.obj["spec"] for stored in await asyncio.gather(*both)]
            assert len({spec["clusterIP"] for spec in specs}) == 2
            assert len({spec["ports"][0]["nodePort"] for spec in specs}) == 2

    asyncio.run(body())


@in_room
async def test_a_claim_lasts_as_long_as_its_service_has_the_thing(room: Room) -> None:
    await room.create("services", service("s", clusterIP=ADDRESS, type="NodePort"))
    assert await claimed(room.storage) == {ADDRESS}
    assert len(await claimed(room.storage, NODE_PORT_PREFIX)) == 1
    await room.patch("services", "s", {"metadata": {"labels": {"a": "b"}}, "spec": {"type": "ClusterIP"}})
    assert await claimed(room.storage) == {ADDRESS}
    assert await claimed(room.storage, NODE_PORT_PREFIX) == set()
    await room.patch("services", "s", {"metadata": {"finalizers": ["a.example/held"]}})
    await room.delete("services", "s")
    assert await claimed(room.storage) == {ADDRESS}
    await room.patch("services", "s", {"metadata": {"finalizers": None}})
    assert await claimed(room.storage) == set()


@in_room
async def test_a_dry_run_claims_nothing(room: Room) -> None:
    await room.create("services", service("s", clusterIP=ADDRESS), dry_run=True)
    await room.create("services", service("s"))
    await room.update("services", service("s", type="NodePort"), dry_run=True)
    assert len(await claimed(room.storage)) == 1
    assert await claimed(room.storage, NODE_PORT_PREFIX) == set()


@in_room
async def test_a_service_that_exists_is_told_as_such_and_keeps_what_it_has(room: Room) -> None:
    await room.create("services", service("s", clusterIP=ADDRESS))
    for spec in ({"clusterIP": ADDRESS}, {}):
        with pytest.raises(AlreadyExistsError):
            await room.create("services", service("s", **spec))
    assert await claimed(room.storage) == {ADDRESS}


@in_room
async def test_a_refused_update_keeps_what_was_there(room: Room) -> None:
    """Test a port that is free in the view while another server is about to write a Service with it."""
    await room.create("services", service("s"))
    await room.storage.create(NODE_PORT_PREFIX + "30001", b'{"metadata":{"creationTimestamp":"now"}}')
    wanted = service("s", type="NodePort", ports=[{"port": 80}, {"port": 81, "nodePort": 30001}])
    for index, port in enumerate(wanted["spec"]["ports"]):
        port["name"] = f"p{index}"
    with pytest.raises(
        InvalidError, match=r"spec\.ports\[1\]\.nodePort: Invalid value: 30001: provided port is already"
    ):
        await room.update("services", wanted)
    assert await claimed(room.storage, NODE_PORT_PREFIX) == {"30001"}
    assert (await room.get("services", "s")).obj["spec"]["type"] == "ClusterIP"


@pytest.mark.parametrize(
    ("value", "age", "had"),
    [
        pytest.param({}, GRACE, False, id="one that is not old yet"),
        pytest.param({}, GRACE + timedelta(seconds=1), True, id="one whose Service never came"),
        pytest.param(b"junk", GRACE * 9, False, id="one that nobody here wrote"),
        pytest.param(b"[]", GRACE * 9, False, id="one of another shape"),
        pytest.param(b"{}", GRACE * 9, False, id="one without a time"),
    ],
)
def test_what_a_server_left_that_died(value: Obj | bytes, age: timedelta, had: bool) -> None:
    @in_room
    async def told(room: Room) -> None:
        await room.create("services", service("gone", clusterIP=ADDRESS))
        entry = await room.storage.get(IP_ADDRESS_PREFIX + ADDRESS)
        assert entry is not None
        await room.delete("services", "gone")
        await room.storage.create(IP_ADDRESS_PREFIX + ADDRESS, value if isinstance(value, bytes) else entry.value)
        await room.clock.advance(age.total_seconds())
        if had:
            assert (await room.create("services", service("s", clusterIP=ADDRESS))).obj["spec"]["clusterIP"] == ADDRESS
            await room.delete("services", "s")
            assert await claimed(room.storage) == set(), "it is the new one's now"
        else:
            with pytest.raises(InvalidError, match=TAKEN):
                await room.create("services", service("s", clusterIP=ADDRESS))

    told()


class Racing(MemoryStorage):
    """Another server is faster at what `lost` names."""

    lost: frozenset[str] = frozenset()
    broken = False

    async def update(self, key: str, value: bytes, *, expected: int, ttl: int = 0) -> Any:
        if key in self.lost:
            await super().update(key, value, expected=expected, ttl=ttl)
        return await super().update(key, value, expected=expected, ttl=ttl)

    async def delete(self, key: str, *, expected: int) -> int:
        if self.broken and not key.startswith("/registry/services/specs/"):
            raise StorageError("the disk is full")
        if key in self.lost:
            await super().delete(key, expected=expected)
        return await super().delete(key, expected=expected)


@asynccontextmanager
async def racing(admission: Sequence[Admission] | None = None) -> AsyncIterator[tuple[Racing, Room]]:
    storage = Racing()
    await storage.open()
    async with open_room(storage, admission=admission) as room:
        await room.create("namespaces", {"metadata": {"name": "default"}})
        yield storage, room
    await storage.close()


def test_of_two_that_take_over_one_does() -> None:
    async def body() -> None:
        async with racing() as (storage, room):
            await room.create("services", service("gone", clusterIP=ADDRESS))
            entry = await storage.get(IP_ADDRESS_PREFIX + ADDRESS)
            assert entry is not None
            await room.delete("services", "gone")
            await storage.create(IP_ADDRESS_PREFIX + ADDRESS, entry.value)
            await room.clock.advance(GRACE.total_seconds() + 1)
            storage.lost = frozenset({IP_ADDRESS_PREFIX + ADDRESS})
            with pytest.raises(InvalidError, match=TAKEN):
                await room.create("services", service("s", clusterIP=ADDRESS))

    asyncio.run(body())


def test_an_old_claim_of_a_service_that_stands_is_not_taken_over() -> None:
    """Without admission, which would refuse before: only the claim is in the way."""

    async def body() -> None:
        async with racing(admission=()) as (_, room):
            await room.create("services", service("s", clusterIP=ADDRESS))
            await room.clock.advance(GRACE.total_seconds() + 1)
            with pytest.raises(InvalidError, match=TAKEN):
                await room.create("services", service("other", clusterIP=ADDRESS))

    asyncio.run(body())


@pytest.mark.parametrize("how", ["lost", "broken"])
def test_a_claim_that_cannot_be_given_back_does_not_hold_up_the_delete(how: str) -> None:
    async def body() -> None:
        async with racing() as (storage, room):
            await room.create("services", service("s", clusterIP=ADDRESS))
            if how == "lost":
                storage.lost = frozenset({IP_ADDRESS_PREFIX + ADDRESS})
            else:
                storage.broken = True
            assert (await room.delete("services", "s")).gone
            assert await room.names("services") == []

    asyncio.run(body())


def test_what_an_update_chooses_and_another_server_has_is_chosen_again() -> None:
    """Test a claim that is given back, or shows in the view, while the update is repeated."""

    async def body() -> None:
        async with racing() as (storage, room):
            await room.create("services", service("s", type="ExternalName", externalName="a.example"))
            asked = 0

            async def create(key: str, value: bytes) -> Entry:
                nonlocal asked
                asked += key.startswith(IP_ADDRESS_PREFIX)
                if asked == 1:
                    raise KeyExistsError(Entry(key, b"{}", 1, 1))
                return await MemoryStorage.create(storage, key, value)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(storage, "create", create)
                stored = await room.patch("services", "s", {"spec": {"type": "ClusterIP", "externalName": None}})
            assert asked == 2
            assert await claimed(storage) == {stored.obj["spec"]["clusterIP"]}

    asyncio.run(body())


def test_what_is_always_taken_is_told_in_the_end() -> None:
    async def body() -> None:
        async with racing() as (storage, room):

            async def create(key: str, value: bytes) -> Entry:
                raise KeyExistsError(Entry(key, b"{}", 1, 1))

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(storage, "create", create)
                with pytest.raises(InvalidError, match=TAKEN):
                    await room.create("services", service("s"))

    asyncio.run(body())


@in_room
async def test_only_the_owner_gives_back(room: Room) -> None:
    key = IP_ADDRESS_PREFIX + ADDRESS
    await room.create("services", service("s", clusterIP=ADDRESS))
    entry = await room.storage.get(key)
    assert entry is not None
    await room.storage.update(key, entry.value.replace(b'owner-uid":"', b'owner-uid":"no'), expected=entry.revision)
    await room.delete("services", "s")
    assert await claimed(room.storage) == {ADDRESS}


# -- beside a kube-apiserver on the same store ------------------------------------------------------------------------


def recorded(key: str) -> bytes:
    return base64.b64decode(json.loads(STORED_VALUES.read_text())["values"][key])


BITMAP = "/registry/ranges/servicenodeports"
"""Recorded with the node ports 30777 and 30778 allocated."""


async def has_port(storage: Storage, port: int) -> bool:
    entry = await storage.get(BITMAP)
    assert entry is not None
    return is_allocated(decode_record(entry.value), port - 30000)


@in_room
async def test_an_address_that_kube_apiserver_claimed_is_given_back_with_its_service(room: Room) -> None:
    key = IP_ADDRESS_PREFIX + "10.96.7.7"
    await room.create("namespaces", {"metadata": {"name": "layout"}})
    service_key = "/registry/services/specs/layout/every"
    await room.storage.create(key, recorded(key))
    with pytest.raises(InvalidError, match=TAKEN):
        await room.create("services", service("other", clusterIP="10.96.7.7"))
    await room.storage.create(service_key, recorded(service_key))
    assert (await room.get("services", "every", "layout")).obj["spec"]["clusterIP"] == "10.96.7.7"
    await room.delete("services", "every", "layout")
    assert await claimed(room.storage) == set()


@in_room
async def test_node_ports_are_taken_from_the_bitmap_of_kube_apiserver_and_given_back_to_it(room: Room) -> None:
    await room.storage.create(BITMAP, recorded(BITMAP))

    def on_port(name: str, port: int) -> Obj:
        return service(name, type="NodePort", ports=[{"port": 80, "nodePort": port}])

    with pytest.raises(InvalidError, match=TAKEN):
        await room.create("services", on_port("a", 30777))
    assert await claimed(room.storage, NODE_PORT_PREFIX) == set()
    assert await has_port(room.storage, 30777), "the port of another server stays taken"
    await room.create("services", on_port("a", 30001))
    assert await has_port(room.storage, 30001)
    await room.delete("services", "a")
    assert not await has_port(room.storage, 30001)
    assert await has_port(room.storage, 30778)


@in_room
async def test_a_bitmap_that_others_change_at_the_same_time_is_changed_again(room: Room) -> None:
    await room.storage.create(BITMAP, recorded(BITMAP))
    ports = range(30001, 30009)
    every = [service(f"s{port}", type="NodePort", ports=[{"port": 80, "nodePort": port}]) for port in ports]
    await asyncio.gather(*(room.create("services", one) for one in every))
    assert [port for port in ports if not await has_port(room.storage, port)] == []


@in_room
async def test_a_bitmap_that_never_comes_to_rest_grants_nothing(room: Room) -> None:
    await room.storage.create(BITMAP, recorded(BITMAP))
    update = room.storage.update

    async def outrun(key: str, value: bytes, *, expected: int) -> Entry:
        if key == BITMAP:
            raise RevisionMismatchError(None)
        return await update(key, value, expected=expected)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room.storage, "update", outrun)
        with pytest.raises(InvalidError, match=TAKEN):
            await room.create("services", service("a", type="NodePort", ports=[{"port": 80, "nodePort": 30001}]))
    assert await claimed(room.storage, NODE_PORT_PREFIX) == set()


# -- what goes with a Service ---------------------------------------------------------------------------------------

SUBSETS = [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 80}]}]


@in_room
async def test_endpoints_go_with_their_service_and_slices_do_not(room: Room) -> None:
    for name in ("s", "t"):
        await room.create("services", service(name))
        await room.create("endpoints", {"metadata": {"name": name}, "subsets": SUBSETS})
    labels = {"kubernetes.io/service-name": "s"}
    await room.create("endpointslices", {"metadata": {"name": "s-1", "labels": labels}, "addressType": "IPv4"})
    await room.delete("services", "s", options=DeleteOptions(dry_run=True))
    assert await room.names("endpoints") == ["s", "t"]
    await room.delete("services", "s")
    assert await room.names("endpoints") == ["t"]
    assert await room.names("endpointslices") == ["s-1"], "its owner reference decides, and the garbage collector"


@in_room
async def test_endpoints_go_when_the_last_finalizer_goes(room: Room) -> None:
    await room.create("services", service("s"))
    await room.create("endpoints", {"metadata": {"name": "s"}, "subsets": SUBSETS})
    await room.patch("services", "s", {"metadata": {"finalizers": ["a.example/held"]}})
    await room.delete("services", "s")
    assert await room.names("endpoints") == ["s"]
    await room.patch("services", "s", {"metadata": {"finalizers": None}})
    assert await room.names("endpoints") == []


def test_endpoints_that_cannot_be_deleted_do_not_make_the_delete_fail(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with racing() as (storage, room):
            await room.create("services", service("s"))
            await room.create("endpoints", {"metadata": {"name": "s"}, "subsets": SUBSETS})
            storage.broken = True
            assert (await room.delete("services", "s")).gone
            storage.broken = False
            assert await room.names("endpoints") == ["s"]

    asyncio.run(body())
    assert "endpoints default/s could not be deleted with its owner: the disk is full" in caplog.text
