"""Test replacing and patching objects.

Source: docs/protocol/errors.md, docs/protocol/patches.md, docs/protocol/requests.md#options, docs/protocol/objects.md,
docs/protocol/namespaces.md.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mooring.api.kind import Kind
from mooring.apimachinery.codec.json import MAX_VALUES, deep_copy
from mooring.apimachinery.schema import Obj
from mooring.errors import (
    STALE,
    ApiError,
    BadRequestError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    MethodNotAllowedError,
    NotFoundError,
    RequestEntityTooLargeError,
)
from mooring.registry.cache import events
from mooring.registry.write.commit import MAX_OBJECT
from mooring.registry.write.writer import PATCH_TRIES
from mooring.storage.contract import RevisionMismatchError
from tests.support.registryroom import Room, in_room, open_room, secret

LEASE: Obj = {"metadata": {"name": "a"}, "spec": {"holderIdentity": "me"}}


def changed(obj: Obj, **metadata: Any) -> Obj:
    """Return a copy with other data and metadata fields; None removes a field."""
    new = deep_copy(obj)
    new["data"] = {"key": "bmV3"}
    new["metadata"].update(metadata)
    new["metadata"] = {key: value for key, value in new["metadata"].items() if value is not None}
    return new


@in_room
async def test_a_put_with_the_stored_resource_version_replaces(room: Room) -> None:
    old = await room.create("secrets", secret("a"))
    stored, created = await room.update("secrets", changed(old.obj))
    assert not created
    assert stored.revision > old.revision
    assert stored.obj["data"] == {"key": "bmV3"}
    assert stored.obj["metadata"]["uid"] == old.obj["metadata"]["uid"]
    assert await room.get("secrets", "a") is stored


@in_room
async def test_a_put_with_an_old_resource_version_is_409_in_the_known_words(room: Room) -> None:
    old = await room.create("secrets", secret("a"))
    await room.update("secrets", changed(old.obj))
    with pytest.raises(ConflictError) as caught:
        await room.update("secrets", old.obj)
    assert caught.value.message == f'Operation cannot be fulfilled on secrets "a": {STALE}'


@pytest.mark.parametrize("version", [None, "", "0"], ids=lambda version: f"resourceVersion {version!r}")
@in_room
async def test_a_put_without_a_resource_version_replaces_whatever_is_there(room: Room, version: str | None) -> None:
    old = await room.create("secrets", secret("a"))
    await room.update("secrets", changed(old.obj))
    stored, _ = await room.update("secrets", secret("a", metadata={"labels": {"x": "y"}, "resourceVersion": version}))
    assert stored.obj["metadata"]["labels"] == {"x": "y"}
    assert stored.obj["metadata"]["uid"] == old.obj["metadata"]["uid"]


@in_room
async def test_a_lease_needs_a_resource_version(room: Room) -> None:
    await room.create("leases", LEASE)
    with pytest.raises(InvalidError) as caught:
        await room.update("leases", {"metadata": {"name": "a"}, "spec": {"holderIdentity": "you"}})
    assert caught.value.message == (
        'Lease.coordination.k8s.io "a" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update'
    )


@pytest.mark.parametrize(
    ("plural", "obj", "created"),
    [
        pytest.param("leases", LEASE, True, id="a Lease is created by PUT"),
        pytest.param(
            "clusterroles", {"metadata": {"name": "a"}, "rules": []}, True, id="a ClusterRole is created by PUT"
        ),
        pytest.param("secrets", secret("a"), False, id="a Secret is not"),
        pytest.param("namespaces", {"metadata": {"name": "a"}}, False, id="a Namespace is not"),
    ],
)
@in_room
async def test_put_to_a_missing_name(room: Room, plural: str, obj: Obj, created: bool) -> None:
    if not created:
        with pytest.raises(NotFoundError):
            await room.update(plural, obj)
        return
    with pytest.raises(ForbiddenError, match="may not create"):
        await room.update(plural, obj, may_create=False)
    stored, was_created = await room.update(plural, obj)
    assert was_created
    assert stored.obj["metadata"]["uid"]


@in_room
async def test_a_resource_version_does_not_hinder_create_by_put(room: Room) -> None:
    _, created = await room.update("leases", {**LEASE, "metadata": {"name": "a", "resourceVersion": "3"}})
    assert created


@pytest.mark.parametrize("exists", [True, False], ids=["object there", "object gone"])
@in_room
async def test_a_put_about_another_uid_is_a_failed_precondition(room: Room, exists: bool) -> None:
    actual = (await room.create("secrets", secret("a"))).obj["metadata"]["uid"] if exists else ""
    with pytest.raises(ConflictError) as caught:
        await room.update("secrets", secret("a", metadata={"uid": "u-1"}))
    why = "uid mismatch: the provided object specified uid u-1, and no existing object was found"
    if exists:
        why = (
            "StorageError: invalid object, Code: 4, Key: /registry/secrets/default/a, ResourceVersion: 0, "
            f"AdditionalErrorMsg: Precondition failed: UID in precondition: u-1, UID in object meta: {actual}"
        )
    assert caught.value.message == f'Operation cannot be fulfilled on secrets "a": {why}'


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"name": "b"}, "the name of the object (b) does not match the name on the URL (a)"),
        ({"name": ""}, "the name of the object (a based on URL) was undeterminable: name must be provided"),
        (
            {"name": "a", "namespace": "other"},
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
    ],
    ids=["another name is 400", "no name is 400", "another namespace is 400"],
)
@in_room
async def test_a_body_about_another_object(room: Room, metadata: Obj, message: str) -> None:
    await room.create("secrets", secret("a"))
    with pytest.raises(BadRequestError) as caught:
        await room.update("secrets", secret(metadata=metadata), name="a")
    assert caught.value.message == message


@in_room
async def test_a_write_that_changes_nothing_keeps_the_revision_and_sends_no_event(room: Room) -> None:
    old = await room.create("secrets", secret("a"))
    await room.watch("secrets", resourceVersion=str(old.revision))
    revision = await room.storage.revision()
    for body in (old.obj, secret("a"), {**secret("a"), "type": "Opaque"}):
        stored, _ = await room.update("secrets", body)
        assert stored is old
    assert await room.patch("secrets", "a", {"data": {"key": "dmFsdWU="}}) is old
    await room.settle()
    assert await room.storage.revision() == revision
    assert room.seen == []


@in_room
async def test_the_stored_object_is_never_changed_in_place(room: Room) -> None:
    old = await room.create("secrets", secret("a", metadata={"labels": {"a": "b"}}))
    before = deep_copy(old.obj)

    def apply(obj: Obj) -> Obj:
        obj["metadata"]["labels"]["a"] = "c"
        return obj

    await room.patch("secrets", "a", apply)
    assert old.obj == before


@in_room
async def test_dry_run_of_a_put_answers_the_change_and_writes_nothing(room: Room) -> None:
    old = await room.create("secrets", secret("a"))
    stored, _ = await room.update("secrets", changed(old.obj), dry_run=True)
    assert stored.obj["data"] == {"key": "bmV3"}
    assert stored.revision == old.revision
    assert await room.get("secrets", "a") is old


@in_room
async def test_an_object_that_grows_above_the_limit_is_413(room: Room) -> None:
    base: Obj = {"metadata": {"name": "a"}, "involvedObject": {"namespace": "default"}}
    await room.create("events", base)
    with pytest.raises(RequestEntityTooLargeError):
        await room.patch("events", "a", {"message": "x" * MAX_OBJECT})


@in_room
async def test_an_unknown_subresource_is_405(room: Room) -> None:
    await room.create("secrets", secret("a"))
    with pytest.raises(MethodNotAllowedError):
        await room.update("secrets", secret("a"), subresource="status")


@in_room
async def test_a_subresource_changes_only_what_it_owns(room: Room) -> None:
    old = await room.create("nodes", {"metadata": {"name": "n"}, "spec": {"providerID": "x"}})
    body = deep_copy(old.obj)
    body["spec"] = {"providerID": "y"}
    body["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    stored, _ = await room.update("nodes", body, subresource="status")
    assert stored.obj["spec"]["providerID"] == "x"
    assert stored.obj["status"]["conditions"][0]["type"] == "Ready"


# -- patch ----------------------------------------------------------------------------------------------------------


@in_room
async def test_a_patch_of_a_missing_object_is_404(room: Room) -> None:
    with pytest.raises(NotFoundError, match=r'^secrets "a" not found$'):
        await room.patch("secrets", "a", {})


@pytest.mark.parametrize(
    ("patch", "error"),
    [
        ({"metadata": {"resourceVersion": "1"}}, ConflictError),
        ({"metadata": {"name": "b"}}, BadRequestError),
        ({"metadata": {"uid": "other"}}, ConflictError),
        ({"metadata": {"labels": {"-": "x"}}}, InvalidError),
    ],
    ids=[
        "a resourceVersion that is not the stored one is 409",
        "another name is 400",
        "another uid is 409",
        "a result against the rules is 422",
    ],
)
@in_room
async def test_patches_refused(room: Room, patch: Obj, error: type[ApiError]) -> None:
    old = await room.create("secrets", secret("a"))
    with pytest.raises(error):
        await room.patch("secrets", "a", patch)
    assert await room.get("secrets", "a") is old


@in_room
async def test_a_patch_is_applied_again_when_somebody_else_was_faster(room: Room) -> None:
    await room.create("configmaps", {"metadata": {"name": "a"}, "data": {"n": "0"}})

    def increment(obj: Obj) -> Obj:
        obj["data"]["n"] = str(int(obj["data"]["n"]) + 1)
        return obj

    await asyncio.gather(*(room.patch("configmaps", "a", increment) for _ in range(4)))
    assert (await room.get("configmaps", "a")).obj["data"]["n"] == "4"


class Meddler:
    """Admission plugin that changes the object before each replacement."""

    name = "Meddler"

    def __init__(self, room: Room) -> None:
        self.room = room
        self.calls = 0

    async def meddle(self) -> None:
        entry = await self.room.storage.get("/registry/configmaps/default/a")
        assert entry is not None
        self.calls += 1
        await self.room.storage.update(entry.key, entry.value, expected=entry.revision)


@in_room
async def test_a_patch_gives_up_after_five_tries(room: Room) -> None:
    await room.create("configmaps", {"metadata": {"name": "a"}, "data": {"n": "0"}})
    real, meddler = room.storage.update, Meddler(room)

    async def update(key: str, value: bytes, *, expected: int, ttl: int = 0) -> Any:
        if b'"n":"1"' in value:
            await meddler.meddle()
        return await real(key, value, expected=expected)

    room.storage.update = update  # type: ignore[method-assign] # another writer, exactly between read and write
    with pytest.raises(ConflictError, match="the object has been modified"):
        await room.patch("configmaps", "a", {"data": {"n": "1"}})
    assert meddler.calls == PATCH_TRIES


@in_room
async def test_an_unconditional_put_wins_over_another_writer_in_between(room: Room) -> None:
    await room.create("configmaps", {"metadata": {"name": "a"}, "data": {"n": "0"}})
    real, meddler = room.storage.update, Meddler(room)

    async def update(key: str, value: bytes, *, expected: int, ttl: int = 0) -> Any:
        if b'"n":"1"' in value and not meddler.calls:
            await meddler.meddle()
        return await real(key, value, expected=expected)

    room.storage.update = update  # type: ignore[method-assign] # another writer, exactly between read and write
    stored, _ = await room.update("configmaps", {"metadata": {"name": "a"}, "data": {"n": "1"}})
    assert stored.obj["data"] == {"n": "1"}
    assert meddler.calls == 1


def test_create_by_put_that_loses_the_race_becomes_an_update() -> None:
    async def scenario() -> None:
        async with open_room() as room:
            real = room.storage.create
            raced = False

            async def create(key: str, value: bytes, *, ttl: int = 0) -> Any:
                nonlocal raced
                if not raced:
                    raced = True
                    await real(key, value.replace(b"mine", b"theirs"))
                return await real(key, value)

            room.storage.create = create  # type: ignore[method-assign] # another writer, just before
            role = {"metadata": {"name": "a", "annotations": {"by": "mine"}}, "rules": []}
            stored, created = await room.update("clusterroles", role)
            assert not created
            assert stored.obj["metadata"]["annotations"] == {"by": "mine"}

    asyncio.run(scenario())


@in_room
async def test_an_unconditional_put_gives_up_when_somebody_always_is_faster(room: Room) -> None:
    await room.create("secrets", secret("a"))

    async def raced(key: str, value: bytes, *, expected: int, ttl: int = 0) -> Any:
        raise RevisionMismatchError(None)

    room.storage.update = raced  # type: ignore[method-assign] # somebody is always faster
    with pytest.raises(ConflictError, match="the object has been modified"):
        await room.update("secrets", secret("a", metadata={"labels": {"a": "b"}}))


@in_room
async def test_a_patch_that_makes_too_many_values_is_413(room: Room) -> None:
    many = {f"k{index}": "" for index in range(MAX_VALUES // 2 + 1)}
    await room.create("configmaps", {"metadata": {"name": "a"}, "data": many})
    with pytest.raises(RequestEntityTooLargeError, match="the object would have more than 100000 values"):
        await room.patch("configmaps", "a", {"data": {f"l{index}": "" for index in range(MAX_VALUES // 2)}})


@in_room
async def test_a_large_object_that_was_written_here_is_not_completed_again(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    completed: list[str] = []
    rewrite = events.normalize

    def count(kind: Kind, value: bytes) -> tuple[bytes, bool]:
        completed.append(kind.resource.plural)
        return rewrite(kind, value)

    monkeypatch.setattr(events, "normalize", count)
    rules = [{"verbs": ["get"], "apiGroups": [""], "resources": [f"r{index}"]} for index in range(500)]
    role = {"metadata": {"name": "a"}, "rules": rules}
    await room.create("roles", role)
    await room.patch("roles", "a", {"metadata": {"labels": {"a": "b"}}})
    assert completed == []
