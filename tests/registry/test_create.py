"""Test creating objects through the registry.

Source: docs/protocol/errors.md, docs/protocol/requests.md#options, docs/protocol/objects.md.
"""

from __future__ import annotations

import asyncio
import re

import pytest

from mooring.apimachinery.schema import Obj
from mooring.errors import (
    AlreadyExistsError,
    ApiError,
    BadRequestError,
    InvalidError,
    NotFoundError,
    RequestEntityTooLargeError,
)
from mooring.registry.write.commit import MAX_OBJECT
from mooring.registry.write.writer import GENERATE_TRIES
from tests.support.registryroom import Room, in_room, open_room, secret


@in_room
async def test_the_server_fills_in_uid_creation_time_and_revision(room: Room) -> None:
    stored = await room.create(
        "secrets", secret("a", metadata={"uid": "mine", "creationTimestamp": "1999-01-01T00:00:00Z"})
    )
    metadata = stored.obj["metadata"]
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", metadata["uid"])
    assert metadata["creationTimestamp"] == "2026-01-02T03:04:05Z"
    assert metadata["resourceVersion"] == str(stored.revision) == str(room.registry.cache.revision)
    assert metadata["namespace"] == "default"
    assert stored.obj["type"] == "Opaque"


@in_room
async def test_what_is_stored_is_json_without_resource_version_in_the_fixed_order(room: Room) -> None:
    stored = await room.create("secrets", {"data": {"k": "dg=="}, "metadata": {"name": "a"}})
    entry = await room.storage.get("/registry/secrets/default/a")
    assert entry is not None
    assert entry.value.startswith(b'{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a"')
    assert b"resourceVersion" not in entry.value
    assert stored.raw == entry.value.replace(
        b'"metadata":{', b'"metadata":{"resourceVersion":"%d",' % entry.revision, 1
    )


@in_room
async def test_the_caller_s_object_is_not_changed(room: Room) -> None:
    obj = secret("a")
    before = secret("a")
    await room.create("secrets", obj)
    assert obj == before


@in_room
async def test_a_second_create_of_a_name_says_already_exists(room: Room) -> None:
    await room.create("secrets", secret("a"))
    with pytest.raises(AlreadyExistsError) as caught:
        await room.create("secrets", secret("a"))
    assert caught.value.message == 'secrets "a" already exists'
    assert (caught.value.details.kind, caught.value.details.name) == ("secrets", "a")


@in_room
async def test_a_create_over_an_object_being_deleted_says_so(room: Room) -> None:
    await room.create("secrets", secret("a", metadata={"finalizers": ["example.com/hold"]}))
    await room.delete("secrets", "a")
    with pytest.raises(AlreadyExistsError, match=r'^object is being deleted: secrets "a" already exists$'):
        await room.create("secrets", secret("a"))


@pytest.mark.parametrize(
    ("plural", "namespace", "obj", "error", "message"),
    [
        pytest.param(
            "secrets",
            "default",
            secret("a", metadata={"namespace": "other"}),
            BadRequestError,
            "the namespace of the provided object does not match the namespace sent on the request",
            id="another namespace in the body is 400",
        ),
        pytest.param(
            "secrets",
            "default",
            secret("a", metadata={"resourceVersion": "5"}),
            ApiError,
            "resourceVersion should not be set on objects to be created",
            id="a resourceVersion is refused",
        ),
        pytest.param(
            "secrets",
            "default",
            secret("A_b"),
            InvalidError,
            'Secret "A_b" is invalid: metadata.name: Invalid value: "A_b"',
            id="a name against the kind's rule is 422",
        ),
        pytest.param(
            "secrets",
            "default",
            secret(),
            InvalidError,
            'Secret "" is invalid: metadata.name: Required value: name or generateName is required',
            id="no name at all is 422",
        ),
        pytest.param(
            "secrets",
            "missing",
            secret("a"),
            NotFoundError,
            'namespaces "missing" not found',
            id="a missing namespace is 404 for the namespace",
        ),
        pytest.param(
            "certificatesigningrequests",
            "",
            {"metadata": {"name": "a"}, "spec": {}},
            InvalidError,
            'CertificateSigningRequest.certificates.k8s.io "a" is invalid: [',
            id="several broken rules are bracketed under the Kind with its group",
        ),
    ],
)
@in_room
async def test_refusedrequests(
    room: Room, plural: str, namespace: str, obj: Obj, error: type[ApiError], message: str
) -> None:
    revision = room.registry.cache.revision
    with pytest.raises(error) as caught:
        await room.create(plural, obj, namespace)
    assert caught.value.message.startswith(message)
    assert await room.storage.revision() == revision


@in_room
async def test_a_namespace_in_a_cluster_scoped_object_is_dropped(room: Room) -> None:
    stored = await room.create("namespaces", {"metadata": {"name": "x", "namespace": "y"}})
    assert "namespace" not in stored.obj["metadata"]


@in_room
async def test_an_object_above_the_storage_limit_is_413(room: Room) -> None:
    huge = {"metadata": {"name": "a"}, "message": "x" * MAX_OBJECT, "involvedObject": {"namespace": "default"}}
    with pytest.raises(RequestEntityTooLargeError, match=f"Request entity too large: limit is {MAX_OBJECT}"):
        await room.create("events", huge)


@in_room
async def test_dry_run_answers_like_a_create_and_stores_nothing(room: Room) -> None:
    revision = room.registry.cache.revision
    stored = await room.create("secrets", secret("a"), dry_run=True)
    assert stored.obj["metadata"]["uid"]
    assert "resourceVersion" not in stored.obj["metadata"]
    assert stored.revision == 0
    assert await room.storage.revision() == revision
    await room.create("secrets", secret("a"))
    with pytest.raises(AlreadyExistsError):
        await room.create("secrets", secret("a"), dry_run=True)


@in_room
async def test_generate_name_appends_five_characters_of_the_safe_alphabet(room: Room) -> None:
    names = {
        (await room.create("secrets", secret(metadata={"generateName": "made-"}))).obj["metadata"]["name"]
        for _ in range(20)
    }
    assert len(names) == 20
    assert all(re.fullmatch("made-[bcdfghjklmnpqrstvwxz2456789]{5}", name) for name in names)


def test_generate_name_tries_again_on_a_collision_and_gives_up_after_eight() -> None:
    draws = 0
    before = 0  # one attempt for the first object, seven collisions and a free name for the second, then all is taken

    def entropy(size: int) -> bytes:  # drawn twice per attempt: for the uid and for the name
        nonlocal draws
        draws += 1
        attempt = (draws - before + 1) // 2
        return (b"\1" if attempt == 1 + GENERATE_TRIES else b"\0") * size

    async def scenario() -> None:
        async with open_room(entropy=entropy) as room:
            nonlocal before
            before = draws
            first = await room.create("secrets", secret(metadata={"generateName": "x-"}))
            second = await room.create("secrets", secret(metadata={"generateName": "x-"}))
            assert first.name != second.name
            with pytest.raises(AlreadyExistsError) as caught:
                await room.create("secrets", secret(metadata={"generateName": "x-"}))
            assert "was not able to generate a unique name" in caught.value.message
            assert caught.value.details.retry_after == 1

    before = (
        0  # one attempt for the first object, then seven collisions and a free name; after that everything is taken
    )
    asyncio.run(scenario())


@in_room
async def test_the_writer_reads_its_own_write_at_once(room: Room) -> None:
    stored = await room.create("secrets", secret("a"))
    assert room.registry.cache.revision >= stored.revision
    view = room.registry.views["secrets"].get("a", "default")
    assert view is not None
    assert view["metadata"]["resourceVersion"] == str(stored.revision)
    assert await room.get("secrets", "a", resource_version="0") is stored
