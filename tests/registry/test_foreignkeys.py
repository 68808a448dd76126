"""Keys of other servers in a namespace: which those are, and that they hold the namespace."""

from __future__ import annotations

import asyncio

import pytest

from mooring.apimachinery.options import DeleteOptions, WriteOptions
from mooring.errors import ConflictError
from mooring.registry.cache.keys import ForeignKeys, namespace_of
from mooring.storage.memory import MemoryStorage
from tests.support.registryroom import Room, in_room, kind, open_room

POLICY = "/registry/networkpolicies/left/every"
THING = "/registry/example.com/things/left/every"


@pytest.mark.parametrize(
    ("key", "namespace"),
    [
        (POLICY, "left"),
        (THING, "left"),
        ("/registry/services/specs/left/every", "left"),
        ("/registry/priorityclasses/every", ""),
        ("/registry/example.com/clusterthings/every", ""),
        ("/registry/example.com/things/left/every/more", ""),
        ("/registry/ranges/servicenodeports", ""),
        ("/registry/mooring/nodeports/30001", ""),
        ("compact_rev_key", ""),
    ],
)
def test_the_namespace_of_a_key_follows_from_its_form(key: str, namespace: str) -> None:
    assert namespace_of(key) == namespace


def test_keys_are_counted_by_resource_until_they_are_gone() -> None:
    keys = ForeignKeys()
    keys.discard(POLICY)
    for key in (POLICY, POLICY, THING, THING + "2"):
        keys.add(key)
    keys.discard("/registry/networkpolicies/other/every")
    assert keys.resources("left") == {"example.com/things": 2, "networkpolicies": 1}
    keys.discard(POLICY)
    assert keys.resources("left") == {"example.com/things": 2}


async def remove(room: Room) -> None:
    """Do what the namespace controller does once a namespace is empty."""
    namespaces = kind("namespaces")
    await room.delete("namespaces", "left", "", options=DeleteOptions())
    obj = (await room.get("namespaces", "left", "")).obj
    bare = {**obj, "spec": {"finalizers": []}}
    await room.registry.writer.update(namespaces, "", "left", bare, room.change(), WriteOptions(), "finalize")


@pytest.mark.parametrize("key", [POLICY, THING, "/registry/secrets/left/unreadable"])
@in_room
async def test_a_namespace_stays_until_the_objects_of_other_servers_are_gone(room: Room, key: str) -> None:
    await room.create("namespaces", {"metadata": {"name": "left"}})
    entry = await room.storage.create(key, b"k8s\0value")
    with pytest.raises(ConflictError, match=r"kinds that this server does not serve: \S+ \(1\)"):
        await remove(room)
    assert (await room.get("namespaces", "left", "")).obj["status"]["phase"] == "Terminating"
    await room.storage.delete(key, expected=entry.revision)
    await room.registry.reader.fresh()
    await remove(room)
    assert "left" not in await room.names("namespaces")


def test_keys_that_are_there_at_the_start_are_counted() -> None:
    async def body() -> None:
        storage = MemoryStorage()
        await storage.open()
        for key in (POLICY, "/registry/secrets/left/unreadable"):
            await storage.create(key, b"k8s\0value")
        async with open_room(storage) as room:
            assert room.registry.cache.foreign.resources("left") == {"networkpolicies": 1, "secrets": 1}

    asyncio.run(body())
