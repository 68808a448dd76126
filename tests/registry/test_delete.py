"""Test deletion: finalizers, propagation, preconditions, namespaces, collections.

Source: docs/protocol/requests.md#delete-options, docs/protocol/objects.md, docs/protocol/namespaces.md.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mooring.apimachinery.options import DeleteOptions, WriteOptions
from mooring.controllers.garbagecollector import GarbageCollector
from mooring.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError
from mooring.registry.write.deletion import finalizers_after, mark_deleted
from mooring.storage.contract import RevisionMismatchError
from tests.support.registryroom import Room, in_room, kind, options, secret

HOLD = {"finalizers": ["example.com/hold"]}


@in_room
async def test_an_object_nothing_holds_is_gone_at_once(room: Room) -> None:
    old = await room.create("secrets", secret("a"))
    await room.watch("secrets", resourceVersion=str(old.revision))
    deleted = await room.delete("secrets", "a")
    assert deleted.gone
    assert deleted.stored.revision == room.registry.cache.revision > old.revision
    with pytest.raises(NotFoundError):
        await room.get("secrets", "a")
    assert room.seen == ["DELETED a"]


@in_room
async def test_deleting_what_is_not_there_is_404(room: Room) -> None:
    with pytest.raises(NotFoundError, match=r'^secrets "a" not found$'):
        await room.delete("secrets", "a")


@in_room
async def test_a_finalizer_holds_the_object_until_it_is_removed(room: Room) -> None:
    old = await room.create("secrets", secret("a", metadata=HOLD))
    await room.watch("secrets", resourceVersion=str(old.revision))
    marked = await room.delete("secrets", "a")
    assert not marked.gone
    metadata = marked.stored.obj["metadata"]
    assert (metadata["deletionTimestamp"], metadata["deletionGracePeriodSeconds"]) == ("2026-01-02T03:04:05Z", 0)
    again = await room.delete("secrets", "a")
    assert (again.stored, again.gone) == (marked.stored, False)
    last = await room.patch("secrets", "a", {"metadata": {"finalizers": None}})
    assert last.obj["metadata"]["deletionTimestamp"]
    assert last.revision == room.registry.cache.revision
    assert room.seen == ["MODIFIED a", "DELETED a"]
    with pytest.raises(NotFoundError):
        await room.get("secrets", "a")


@in_room
async def test_no_finalizer_is_added_to_an_object_being_deleted(room: Room) -> None:
    await room.create("secrets", secret("a", metadata=HOLD))
    await room.delete("secrets", "a")
    with pytest.raises(InvalidError, match="no new finalizers can be added if the object is being deleted"):
        await room.patch("secrets", "a", {"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}})


@pytest.mark.parametrize(
    ("present", "propagation", "after"),
    [
        ([], "", []),
        ([], "Background", []),
        ([], "Foreground", ["foregroundDeletion"]),
        ([], "Orphan", ["orphan"]),
        (["a/b"], "Foreground", ["a/b", "foregroundDeletion"]),
        (["orphan"], "", ["orphan"]),
        (["orphan", "a/b"], "Foreground", ["a/b", "foregroundDeletion"]),
        (["foregroundDeletion"], "Background", []),
    ],
)
def test_propagation_policy_decides_the_collector_s_finalizer(
    present: list[str], propagation: str, after: list[str]
) -> None:
    assert finalizers_after(kind("secrets"), present, propagation) == after


@pytest.mark.parametrize("plural", ["events"])
@pytest.mark.parametrize("propagation", ["", "Background", "Foreground", "Orphan"])
def test_what_the_collector_does_not_look_at_gets_no_finalizer_of_its(plural: str, propagation: str) -> None:
    assert finalizers_after(kind(plural), ["foregroundDeletion", "orphan", "a/b"], propagation) == ["a/b"]
    assert plural not in GarbageCollector().watches


@pytest.mark.parametrize("propagation", ["Foreground", "Orphan"])
@in_room
async def test_an_event_is_gone_whatever_becomes_of_dependents(room: Room, propagation: str) -> None:
    left = ["foregroundDeletion"]  # by a server before this rule
    for finalizers in ([], left):
        metadata = {"name": "Any Name", "finalizers": finalizers}
        await room.create("events", {"metadata": metadata, "involvedObject": {"namespace": "default"}})
        assert (await room.delete("events", "Any Name", options=DeleteOptions(propagation=propagation))).gone


@in_room
async def test_a_foreground_delete_waits_for_the_collector(room: Room) -> None:
    await room.create("secrets", secret("a"))
    deleted = await room.delete("secrets", "a", options=DeleteOptions(propagation="Foreground"))
    assert not deleted.gone
    assert deleted.stored.obj["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert (await room.delete("secrets", "a", options=DeleteOptions(propagation="Background"))).gone


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (DeleteOptions(uid="u-1"), "the UID in the precondition (u-1) does not match the UID in record ("),
        (DeleteOptions(uid=""), "the UID in the precondition () does not match the UID in record ("),
        (
            DeleteOptions(resource_version="1"),
            "the ResourceVersion in the precondition (1) does not match the ResourceVersion in record (",
        ),
        (
            DeleteOptions(resource_version=""),
            "the ResourceVersion in the precondition () does not match the ResourceVersion in record (",
        ),
    ],
    ids=["another uid", "an empty uid", "another resourceVersion", "an empty resourceVersion"],
)
@in_room
async def test_failed_preconditions_are_409(room: Room, asked: DeleteOptions, message: str) -> None:
    await room.create("secrets", secret("a"))
    with pytest.raises(ConflictError) as caught:
        await room.delete("secrets", "a", options=asked)
    assert caught.value.message.startswith(f'Operation cannot be fulfilled on Secret "a": {message}')


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (DeleteOptions(uid="u-1"), "UID in precondition: u-1, UID in object meta: "),
        (DeleteOptions(resource_version="1"), "ResourceVersion in precondition: 1, ResourceVersion in object meta: "),
    ],
    ids=["another uid", "another resourceVersion"],
)
@in_room
async def test_failed_preconditions_of_a_namespace_have_their_own_words(
    room: Room, asked: DeleteOptions, message: str
) -> None:
    await room.create("namespaces", {"metadata": {"name": "n"}})
    with pytest.raises(ConflictError) as caught:
        await room.delete("namespaces", "n", namespace="", options=asked)
    assert caught.value.message.startswith(
        f'Operation cannot be fulfilled on namespaces "n": Precondition failed: {message}'
    )


@in_room
async def test_kept_preconditions_let_the_delete_pass(room: Room) -> None:
    old = await room.create("secrets", secret("a"))
    asked = DeleteOptions(uid=old.obj["metadata"]["uid"], resource_version=str(old.revision))
    assert (await room.delete("secrets", "a", options=asked)).gone


@pytest.mark.parametrize("metadata", [{}, HOLD], ids=["nothing holds it", "a finalizer holds it"])
@in_room
async def test_dry_run_of_a_delete_changes_nothing(room: Room, metadata: dict[str, Any]) -> None:
    old = await room.create("secrets", secret("a", metadata=metadata))
    deleted = await room.delete("secrets", "a", options=DeleteOptions(dry_run=True))
    assert deleted.gone is not bool(metadata)
    assert ("deletionTimestamp" in deleted.stored.obj["metadata"]) is bool(metadata)
    assert await room.get("secrets", "a") is old


@pytest.mark.parametrize("held", [False, True], ids=["deleting", "marking"])
@in_room
async def test_a_delete_is_tried_again_when_the_object_changed_meanwhile(room: Room, held: bool) -> None:
    await room.create("secrets", secret("a", metadata=HOLD if held else {}))
    storage = room.storage
    verb = "update" if held else "delete"
    real = getattr(storage, verb)
    meddled = 0

    async def raced(key: str, *args: bytes, expected: int, **lifetime: int) -> Any:
        nonlocal meddled
        if not meddled:
            meddled += 1
            entry = await storage.get(key)
            assert entry is not None
            await type(storage).update(storage, key, entry.value, expected=entry.revision)
        return await real(key, *args, expected=expected, **lifetime)

    setattr(storage, verb, raced)
    assert (await room.delete("secrets", "a")).gone is not held
    assert meddled == 1


# -- namespaces -----------------------------------------------------------------------------------------------------


@in_room
async def test_a_namespace_terminates_until_its_finalizers_are_gone(room: Room) -> None:
    await room.create("namespaces", {"metadata": {"name": "x"}})
    await room.create("secrets", secret("a"), "x")
    deleted = await room.delete("namespaces", "x")
    assert not deleted.gone
    assert deleted.stored.obj["status"]["phase"] == "Terminating"
    assert deleted.stored.obj["metadata"]["deletionTimestamp"]
    with pytest.raises(ForbiddenError) as caught:
        await room.create("secrets", secret("b"), "x")
    assert caught.value.message == (
        'secrets "b" is forbidden: unable to create new content in namespace x because it is being terminated'
    )
    assert [(cause.reason, cause.field) for cause in caught.value.details.causes] == [
        ("NamespaceTerminating", "metadata.namespace")
    ]
    await room.patch("secrets", "a", {"metadata": {"labels": {"a": "b"}}}, "x")
    assert (await room.delete("secrets", "a", "x")).gone
    assert not (await room.delete("namespaces", "x")).gone
    body = {**deleted.stored.obj, "spec": {}}
    stored, _ = await room.update("namespaces", body, subresource="finalize")
    assert stored.revision == room.registry.cache.revision
    with pytest.raises(NotFoundError):
        await room.get("namespaces", "x")


@in_room
async def test_a_namespace_with_a_metadata_finalizer_outlives_finalize(room: Room) -> None:
    await room.create("namespaces", {"metadata": {"name": "x", **HOLD}})
    deleted = await room.delete("namespaces", "x")
    await room.update("namespaces", {**deleted.stored.obj, "spec": {}}, subresource="finalize")
    assert (await room.get("namespaces", "x")).obj["status"]["phase"] == "Terminating"
    await room.patch("namespaces", "x", {"metadata": {"finalizers": None}})
    with pytest.raises(NotFoundError):
        await room.get("namespaces", "x")


@pytest.mark.parametrize("method", ["update", "patch"])
@in_room
async def test_a_finalizer_is_removed_in_a_namespace_that_does_not_exist(room: Room, method: str) -> None:
    namespace = await room.create("namespaces", {"metadata": {"name": "x"}})
    await room.create("secrets", secret("a", metadata=HOLD), "x")
    await room.storage.delete("/registry/namespaces/x", expected=namespace.revision)  # as a restore leaves it
    await room.registry.reader.fresh()
    assert not (await room.delete("secrets", "a", "x")).gone
    if method == "update":
        await room.update("secrets", secret("a"), "x")
    else:
        await room.patch("secrets", "a", {"metadata": {"finalizers": None}}, "x")
    with pytest.raises(NotFoundError, match='secrets "a" not found'):
        await room.get("secrets", "a", "x")
    with pytest.raises(NotFoundError, match='namespaces "x" not found'):
        await room.update("leases", {"metadata": {"name": "a"}}, "x")


@pytest.mark.parametrize("name", ["default", "kube-system", "kube-public"])
@in_room
async def test_the_namespaces_every_cluster_needs_cannot_be_deleted(room: Room, name: str) -> None:
    with pytest.raises(ForbiddenError) as caught:
        await room.delete("namespaces", name)
    assert caught.value.message == f'namespaces "{name}" is forbidden: this namespace may not be deleted'


# -- collections ----------------------------------------------------------------------------------------------------


@in_room
async def test_deletecollection_takes_what_the_selectors_match_and_returns_it(room: Room) -> None:
    for index in range(40):
        await room.create("secrets", secret(f"s-{index:02}", metadata={"labels": {"odd": str(index % 2)}}))
    listed = await room.registry.writer.delete_collection(
        kind("secrets"), "default", options(labelSelector="odd=1"), DeleteOptions(), room.change()
    )
    assert len(listed.items) == 20
    assert await room.names("secrets", "default") == [f"s-{index:02}" for index in range(0, 40, 2)]


@in_room
async def test_deletecollection_does_not_mind_what_somebody_else_deleted_first(room: Room) -> None:
    for name in "abc":
        await room.create("secrets", secret(name))
    real, first = room.storage.delete, True

    async def delete(key: str, *, expected: int) -> int:
        nonlocal first
        if first:
            first = False
            await real("/registry/secrets/default/c", expected=(await room.get("secrets", "c")).revision)
        return await real(key, expected=expected)

    room.storage.delete = delete  # type: ignore[method-assign] # another client in between
    await room.registry.writer.delete_collection(kind("secrets"), "default", options(), DeleteOptions(), room.change())
    assert await room.names("secrets") == []


@in_room
async def test_deletecollection_stops_at_the_first_refusal(room: Room) -> None:
    for name in "abc":
        await room.create("secrets", secret(name))
    with pytest.raises(ConflictError):
        await room.registry.writer.delete_collection(
            kind("secrets"), "default", options(), DeleteOptions(uid="none"), room.change()
        )
    assert await room.names("secrets") == ["a", "b", "c"]


@in_room
async def test_deletecollection_of_nothing_is_an_empty_list(room: Room) -> None:
    listed = await room.registry.writer.delete_collection(
        kind("secrets"), "default", options(), DeleteOptions(), room.change()
    )
    assert list(listed.items) == []


@in_room
async def test_a_marked_object_that_lost_its_holders_elsewhere_goes_with_the_next_write(room: Room) -> None:
    stored = await room.create("secrets", secret("a"))
    entry = await room.storage.get(stored.key)
    assert entry is not None
    value = entry.value.replace(b'"metadata":{', b'"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z",', 1)
    await room.storage.update(stored.key, value, expected=entry.revision)
    obj = (await room.get("secrets", "a")).obj
    await room.registry.writer.update(kind("secrets"), "default", "a", obj, room.change(), WriteOptions())
    assert await room.names("secrets") == []


def test_marking_an_object_that_counts_generations_makes_a_new_one() -> None:
    obj = {"metadata": {"name": "a", "generation": 3}}
    now = datetime(2026, 1, 1, tzinfo=UTC)
    new = mark_deleted(kind("secrets"), obj, "", now)
    assert new["metadata"]["generation"] == 4
    assert mark_deleted(kind("secrets"), new, "", now + timedelta(days=1)) == new
    assert obj == {"metadata": {"name": "a", "generation": 3}}


@in_room
async def test_a_delete_gives_up_when_somebody_always_is_faster(room: Room) -> None:
    await room.create("secrets", secret("a"))

    async def raced(key: str, *, expected: int) -> int:
        raise RevisionMismatchError(None)

    room.storage.delete = raced  # type: ignore[method-assign] # somebody is always faster
    with pytest.raises(ConflictError, match="the object has been modified"):
        await room.delete("secrets", "a")
