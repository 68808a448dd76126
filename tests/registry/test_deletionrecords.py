"""Records of deletions: the uid of a Node is in its NodeIdentity before the Node is deleted, on every path, after every failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mooring.api.mooring.membership import has_ended, new_identity
from mooring.apimachinery.options import DeleteOptions
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.errors import ConflictError, ForbiddenError, NotFoundError, StorageError
from mooring.identity import NODES, UserInfo
from mooring.registry.write.deletion import deletion_records
from mooring.storage.memory import MemoryStorage
from tests.support.registryroom import ADMIN, Room, in_room, kind, open_room, options

OWN = "system:node:n1"
KEY = {"publicKey": "sha256:" + "0" * 64, "notAfter": "2027-01-01T00:00:00Z"}
IDENTITIES = "nodeidentities"


def node(**metadata: Any) -> Obj:
    return {"metadata": {"name": "n1", **metadata}}


async def member(room: Room, **metadata: Any) -> str:
    """Create an identity and its Node; return the uid of the Node."""
    await room.create(IDENTITIES, new_identity("n1", keys=[KEY]))
    return await registered(room, **metadata)


async def registered(room: Room, **metadata: Any) -> str:
    uid: str = (await room.create("nodes", node(**metadata))).obj["metadata"]["uid"]
    return uid


async def recorded(room: Room) -> str:
    obj: Obj = (await room.get(IDENTITIES, "n1")).obj
    return str(obj["spec"].get("nodeUID", ""))


async def ended(room: Room) -> bool:
    views = room.registry.views
    return has_ended(views[IDENTITIES].get("n1"), views["nodes"].get("n1"))


async def by_a_delete(room: Room) -> None:
    assert (await room.delete("nodes", "n1")).gone


async def by_a_collection(room: Room) -> None:
    await room.registry.writer.delete_collection(kind("nodes"), "", options(), DeleteOptions(), room.change())


async def by_the_last_finalizer(room: Room) -> None:
    await room.patch("nodes", "n1", {"metadata": {"finalizers": ["example.com/hold"]}})
    assert not (await room.delete("nodes", "n1")).gone
    assert await ended(room), "a finalizer does not prolong a membership"
    assert not (await room.delete("nodes", "n1")).gone
    await room.patch("nodes", "n1", {"metadata": {"finalizers": None}})


WAYS = [by_a_delete, by_a_collection, by_the_last_finalizer]


@pytest.mark.parametrize("way", WAYS)
def test_a_deletion_ends_the_membership(way: Callable[[Room], Awaitable[None]]) -> None:
    async def body() -> None:
        async with open_room() as room:
            uid = await member(room)
            assert not await ended(room)
            await way(room)
            assert await recorded(room) == uid
            assert await ended(room)

    asyncio.run(body())


def test_a_machine_that_may_return_is_no_former_member() -> None:
    async def body() -> None:
        async with open_room(records=deletion_records(ends_membership=False)) as room:
            uid = await member(room)
            await room.delete("nodes", "n1")
            assert await recorded(room) == uid
            assert not await ended(room)
            await room.create("nodes", node(), user=UserInfo(OWN, groups=(NODES,)))

    asyncio.run(body())


@in_room
async def test_a_name_without_an_identity_gets_one(room: Room) -> None:
    uid = await registered(room)
    await room.delete("nodes", "n1")
    spec = (await room.get(IDENTITIES, "n1")).obj["spec"]
    assert spec == {"nodeUID": uid, "changedAt": rfc3339(room.change().now)}


@in_room
async def test_a_second_deletion_records_the_second_node(room: Room) -> None:
    await member(room)
    await room.delete("nodes", "n1")
    uid = await registered(room)
    assert await ended(room), "a Node that an administrator creates again is another Node"
    await room.delete("nodes", "n1")
    assert await recorded(room) == uid


@pytest.mark.parametrize(
    "delete",
    [
        pytest.param(DeleteOptions(dry_run=True), id="a dry run"),
        pytest.param(DeleteOptions(uid="another"), id="another uid"),
        pytest.param(DeleteOptions(resource_version="1"), id="an older state"),
    ],
)
def test_a_node_that_stays_leaves_no_record(delete: DeleteOptions) -> None:
    async def body() -> None:
        async with open_room() as room:
            await member(room)
            try:
                await room.delete("nodes", "n1", options=delete)
            except ConflictError:
                assert not delete.dry_run
            assert await recorded(room) == ""

    asyncio.run(body())


@in_room
async def test_other_kinds_leave_no_record(room: Room) -> None:
    await room.create("configmaps", {"metadata": {"name": "n1"}})
    await room.delete("configmaps", "n1")
    with pytest.raises(NotFoundError):
        await room.get(IDENTITIES, "n1")


class Intercepted(MemoryStorage):
    """Runs a function once before a key is deleted, or before a record is written."""

    def __init__(self) -> None:
        super().__init__()
        self.before_delete: Callable[[], Awaitable[None]] | None = None
        self.before_record: Callable[[], Awaitable[None]] | None = None

    async def _run(self, name: str) -> None:
        function, empty = getattr(self, name), None
        setattr(self, name, empty)
        if function is not None:
            await function()

    async def delete(self, key: str, *, expected: int) -> int:
        if key == "/registry/minions/n1":
            await self._run("before_delete")
        return await super().delete(key, expected=expected)

    async def create(self, key: str, value: bytes, *, ttl: int = 0) -> Any:
        if key.endswith("/nodeidentities/n1"):
            await self._run("before_record")
        return await super().create(key, value, ttl=ttl)

    async def update(self, key: str, value: bytes, *, expected: int, ttl: int = 0) -> Any:
        if key.endswith("/nodeidentities/n1"):
            await self._run("before_record")
        return await super().update(key, value, expected=expected, ttl=ttl)


def in_intercepted_room(test: Callable[[Room, Intercepted], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def body() -> None:
            storage = Intercepted()
            await storage.open()
            async with open_room(storage=storage) as room:
                await test(room, storage)

        asyncio.run(body())

    return run


@in_intercepted_room
async def test_a_server_that_dies_in_between_leaves_a_member(room: Room, storage: Intercepted) -> None:
    async def die() -> None:
        raise StorageError("killed")

    uid = await member(room)
    storage.before_delete = die
    with pytest.raises(StorageError):
        await room.delete("nodes", "n1")
    assert await recorded(room) == uid
    assert not await ended(room), "the Node exists"
    await room.delete("nodes", "n1")
    assert await ended(room)


@in_intercepted_room
async def test_a_heartbeat_in_between_delays_the_deletion(room: Room, storage: Intercepted) -> None:
    async def beat() -> None:
        await room.patch("nodes", "n1", {"metadata": {"labels": {"beat": "1"}}})

    uid = await member(room)
    storage.before_delete = beat
    await room.delete("nodes", "n1")
    assert await recorded(room) == uid
    assert await ended(room)


@pytest.mark.parametrize("known", [True, False], ids=["with an identity", "without an identity"])
def test_a_machine_that_joined_again_in_between_stays_a_member(known: bool) -> None:
    async def body() -> None:
        storage = Intercepted()
        await storage.open()
        async with open_room(storage=storage) as room:

            async def joined_again() -> None:
                """Another server deletes the Node, and the machine joins again before this server writes its record."""
                await room.delete("nodes", "n1")
                await room.patch(IDENTITIES, "n1", {"spec": {"keys": [KEY], "nodeUID": None}})

            await (member(room) if known else registered(room))
            storage.before_record = joined_again
            with pytest.raises(NotFoundError):
                await room.delete("nodes", "n1")
            assert await recorded(room) == ""

    asyncio.run(body())


@in_room
async def test_a_machine_that_joined_while_its_former_node_was_held_stays_a_member(room: Room) -> None:
    """A person approves the next machine; the last finalizer of the former Node does not end its membership."""
    await member(room, finalizers=["example.com/hold"])
    await room.delete("nodes", "n1")
    assert await ended(room)
    await room.patch(IDENTITIES, "n1", {"spec": {"keys": [KEY], "nodeUID": None}})
    await room.patch("nodes", "n1", {"metadata": {"finalizers": None}})
    assert not await ended(room)
    assert not await recorded(room)


@in_intercepted_room
async def test_a_node_that_was_deleted_before_the_record_is_read(room: Room, storage: Intercepted) -> None:
    """The deletion was not recorded when it began, and a finalizer is removed twice at once: the second finds no Node."""
    await member(room)
    await room.patch("nodes", "n1", {"metadata": {"finalizers": ["example.com/hold"]}})
    await room.delete("nodes", "n1")
    await room.patch(IDENTITIES, "n1", {"spec": {"nodeUID": None, "changedAt": None}})

    async def remove() -> None:
        await room.patch("nodes", "n1", {"metadata": {"finalizers": None}})

    storage.before_record = remove
    with pytest.raises(NotFoundError):
        await room.patch("nodes", "n1", {"metadata": {"finalizers": None}})
    assert await ended(room)


@in_room
async def test_a_machine_does_not_create_its_node_again(room: Room) -> None:
    machine = UserInfo(OWN, groups=(NODES,))
    await room.create(IDENTITIES, new_identity("n1", keys=[KEY]))
    await room.create("nodes", node(), user=machine)
    await room.delete("nodes", "n1")
    with pytest.raises(
        ForbiddenError, match="ended the membership of this machine; let it join again with a valid token"
    ):
        await room.create("nodes", node(), user=machine)
    await room.create("nodes", node(), user=ADMIN)
    await room.delete("nodes", "n1")
    await room.patch(IDENTITIES, "n1", {"spec": {"nodeUID": None}})
    await room.create("nodes", node(), user=machine)
