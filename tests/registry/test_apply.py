"""Test server-side apply through the registry: stored objects, refusals, and ordinary writes beside it."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.apimachinery.options import WriteOptions
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.errors import (
    BadRequestError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    RequestEntityTooLargeError,
)
from mooring.registry.cache.events import Stored
from tests.support.registryroom import Room, in_room, kind


def config(plural: str = "configmaps", name: str = "m", **members: Any) -> Obj:
    resource = kind(plural).resource
    metadata = {"name": name, **members.pop("metadata", {})}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **members}


async def apply(
    room: Room,
    obj: Obj,
    plural: str = "configmaps",
    manager: str = "a",
    subresource: str = "",
    may_create: bool = True,
    name: str = "m",
    dry_run: bool = False,
    force: bool = False,
) -> tuple[Stored, bool]:
    namespace = "default" if kind(plural).resource.namespaced else ""
    asked = WriteOptions(dry_run=dry_run, field_manager=manager, force=force)
    return await room.registry.writer.apply(
        kind(plural), namespace, name, obj, room.change(), asked, subresource, may_create
    )


def managers(stored: Stored) -> list[str]:
    return [entry["manager"] for entry in stored.obj["metadata"].get("managedFields", [])]


@in_room
async def test_what_is_not_there_is_created(room: Room) -> None:
    stored, created = await apply(room, config(data={"x": "1"}))
    assert created
    assert stored.obj["data"] == {"x": "1"}
    assert managers(stored) == ["a"]
    assert (await room.get("configmaps", "m")).obj == stored.obj


@in_room
async def test_what_is_there_is_merged(room: Room) -> None:
    await room.create("configmaps", config(data={"x": "1", "y": "1"}))
    stored, created = await apply(room, config(data={"x": "1", "z": "1"}))
    assert not created
    assert stored.obj["data"] == {"x": "1", "y": "1", "z": "1"}
    assert managers(stored) == ["a", "before-first-apply"]


@in_room
async def test_applying_again_writes_nothing(room: Room) -> None:
    first, _ = await apply(room, config(data={"x": "1"}))
    await room.clock.advance(5)
    again, _ = await apply(room, config(data={"x": "1"}))
    assert again.raw == first.raw
    assert room.registry.cache.revision == first.revision


@in_room
async def test_a_new_owner_of_the_same_value_is_written(room: Room) -> None:
    first, _ = await apply(room, config(data={"x": "1"}))
    second, _ = await apply(room, config(data={"x": "1"}), manager="b")
    assert second.revision > first.revision
    assert managers(second) == ["a", "b"]


@in_room
async def test_an_update_is_recorded_where_fields_are_tracked_and_only_there(room: Room) -> None:
    await apply(room, config(data={"x": "1"}))
    patched = await room.patch("configmaps", "m", {"data": {"y": "1"}})
    assert managers(patched) == ["a", "mooring"]
    same = await room.patch("configmaps", "m", {"data": {"y": "1"}})
    assert same.revision == patched.revision
    await room.create("configmaps", config(name="plain"))
    plain = await room.patch("configmaps", "plain", {"data": {"y": "1"}})
    assert "managedFields" not in plain.obj["metadata"]


async def create(room: Room, plural: str, obj: Obj, manager: str = "tool") -> Stored:
    """Create an object as a client does; without a manager, as the server itself does."""
    namespace = "default" if kind(plural).resource.namespaced else ""
    options = WriteOptions(field_manager=manager)
    return await room.registry.writer.create(kind(plural), namespace, obj, room.change(), options)


@pytest.mark.parametrize(
    ("plural", "members", "fields"),
    [
        pytest.param(
            "configmaps",
            {"data": {"x": "1"}, "metadata": {"labels": {"l": "1"}, "uid": "u", "managedFields": [{}]}},
            {
                "f:data": {".": {}, "f:x": {}},
                "f:metadata": {"f:labels": {".": {}, "f:l": {}}},
            },
            id="what the client sent, and nothing that the server sets",
        ),
        pytest.param(
            "secrets",
            {"stringData": {"x": "1"}},
            {"f:data": {".": {}, "f:x": {}}, "f:type": {}},
            id="fields under the name by which they are stored, and the type",
        ),
        pytest.param(
            "services",
            {"spec": {"ports": [{"port": 80}]}},
            {
                "f:spec": {
                    "f:internalTrafficPolicy": {},
                    "f:ports": {
                        ".": {},
                        'k:{"port":80,"protocol":"TCP"}': {".": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {}},
                    },
                    "f:sessionAffinity": {},
                    "f:type": {},
                }
            },
            id="defaults, and no address that the server chose",
        ),
        pytest.param(
            "namespaces",
            {"status": {"phase": "Active"}},
            {"f:metadata": {"f:labels": {".": {}, "f:kubernetes.io/metadata.name": {}}}},
            id="no status, which is a subresource",
        ),
    ],
)
def test_the_creator_of_an_object_owns(plural: str, members: dict[str, Any], fields: Obj) -> None:
    @in_room
    async def run(room: Room) -> None:
        stored = await create(room, plural, config(plural, **members))
        (entry,) = stored.obj["metadata"]["managedFields"]
        assert entry == {
            "manager": "tool",
            "operation": "Update",
            "apiVersion": "v1",
            "time": rfc3339(room.clock.now()),
            "fieldsType": "FieldsV1",
            "fieldsV1": fields,
        }
        assert (await room.get(plural, "m")).raw == stored.raw

    run()


@pytest.mark.parametrize(
    ("plural", "members", "manager"),
    [
        pytest.param("configmaps", {}, "", id="an object that the server creates"),
        pytest.param("nodes", {}, "tool", id="a Node"),
        pytest.param("leases", {}, "tool", id="a Lease"),
        pytest.param("secrets", {"type": "bootstrap.kubernetes.io/token"}, "tool", id="a bootstrap token"),
        pytest.param(
            "events",
            {"involvedObject": {"namespace": "default"}, "reason": "r", "message": "m", "type": "Normal"},
            "tool",
            id="an Event",
        ),
    ],
)
def test_no_creator_is_recorded_for(plural: str, members: dict[str, Any], manager: str) -> None:
    @in_room
    async def run(room: Room) -> None:
        stored = await create(room, plural, config(plural, **members), manager)
        assert "managedFields" not in stored.obj["metadata"]

    run()


@in_room
async def test_a_tool_that_takes_over_the_fields_of_the_creator_removes_what_it_no_longer_applies(room: Room) -> None:
    # client-go's csaupgrade, which Helm 4 uses for a release of Helm 3
    made = await create(
        room, "services", config("services", spec={"ports": [{"port": 80}], "selector": {"a": "b", "c": "d"}})
    )
    entries = [entry | {"operation": "Apply"} for entry in made.obj["metadata"]["managedFields"]]
    await room.patch("services", "m", {"metadata": {"managedFields": entries}})
    wanted = config("services", spec={"ports": [{"port": 80}], "selector": {"a": "b"}})
    stored, _ = await apply(room, wanted, "services", "tool")
    assert stored.obj["spec"] == made.obj["spec"] | {"selector": {"a": "b"}}
    assert managers(stored) == ["tool"]


@in_room
async def test_an_update_after_the_creation_by_another_client_is_recorded_beside_it(room: Room) -> None:
    await create(room, "configmaps", config(data={"x": "1", "y": "1"}))
    await room.clock.advance(1)
    patched = await room.patch("configmaps", "m", {"data": {"y": "2"}})
    assert [entry["fieldsV1"]["f:data"] for entry in patched.obj["metadata"]["managedFields"]] == [
        {".": {}, "f:x": {}},
        {"f:y": {}},
    ]


@in_room
async def test_a_client_that_knows_nothing_of_entries_keeps_them_and_an_empty_one_ends_them(room: Room) -> None:
    await apply(room, config(data={"x": "1"}))
    stored, _ = await room.update("configmaps", config(data={"x": "1"}, metadata={"namespace": "default"}))
    assert managers(stored) == ["a"]
    resets: tuple[list[Obj], ...] = ([], [{}])
    for reset in resets:
        await apply(room, config(data={"x": "1"}))
        stored = await room.patch("configmaps", "m", {"metadata": {"managedFields": reset}})
        assert "managedFields" not in stored.obj["metadata"]


@in_room
async def test_an_apply_that_owns_nothing_leaves_no_entry(room: Room) -> None:
    stored, created = await apply(room, config("namespaces"), "namespaces")
    assert (created, managers(stored)) == (True, [])


@in_room
async def test_an_object_that_only_its_entries_make_too_large_is_stored_without_them(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await create(room, "configmaps", config(name="a", data={"x": "1"}))
    assert managers(made) == ["tool"]
    monkeypatch.setattr("mooring.registry.write.commit.MAX_OBJECT", len(made.raw) - 100)
    assert managers(await create(room, "configmaps", config(name="b", data={"x": "1"}))) == []
    assert managers(await room.patch("configmaps", "a", {"data": {"x": "2"}})) == []
    with pytest.raises(RequestEntityTooLargeError):
        await apply(room, config(name="a", data={"x": "2"}), name="a")


@in_room
async def test_a_dry_run_stores_nothing(room: Room) -> None:
    stored, created = await apply(room, config(data={"x": "1"}), dry_run=True)
    assert created
    assert managers(stored) == ["a"]
    with pytest.raises(NotFoundError):
        await room.get("configmaps", "m")


@in_room
async def test_a_conflict_changes_nothing_and_force_does(room: Room) -> None:
    first, _ = await apply(room, config(data={"x": "1"}))
    with pytest.raises(ConflictError, match=r'conflict with "a": \.data\.x'):
        await apply(room, config(data={"x": "2"}), manager="b")
    assert (await room.get("configmaps", "m")).revision == first.revision
    forced, _ = await apply(room, config(data={"x": "2"}), manager="b", force=True)
    assert managers(forced) == ["b"]


@pytest.mark.parametrize(
    ("obj", "more", "error"),
    [
        pytest.param(config(name="other"), {}, BadRequestError, id="another name"),
        pytest.param({**config(), "metadata": {}}, {}, BadRequestError, id="no name for a new object"),
        pytest.param(config(metadata={"namespace": "x"}), {}, BadRequestError, id="another namespace"),
        pytest.param(config(metadata={"uid": "u"}), {}, ConflictError, id="the uid of an object that is not there"),
        pytest.param(
            config(metadata={"resourceVersion": "1"}), {}, ConflictError, id="the version of one that is not there"
        ),
        pytest.param(config(data={"?": ""}), {}, InvalidError, id="what validation refuses"),
        pytest.param(config(), {"may_create": False}, ForbiddenError, id="a user who may not create"),
        pytest.param(
            config("pods", status={}),
            {"plural": "pods", "subresource": "status"},
            NotFoundError,
            id="the status of nothing",
        ),
    ],
)
def test_what_is_not_there_is_refused_for(obj: Obj, more: dict[str, Any], error: type[Exception]) -> None:
    @in_room
    async def refused(room: Room) -> None:
        with pytest.raises(error):
            await apply(room, obj, **more)

    refused()


@in_room
async def test_a_resource_version_must_be_the_stored_one(room: Room) -> None:
    first, _ = await apply(room, config(data={"x": "1"}))
    with pytest.raises(ConflictError, match="modified"):
        await apply(room, config(data={"x": "2"}, metadata={"resourceVersion": "1"}))
    stored, _ = await apply(room, config(data={"x": "2"}, metadata={"resourceVersion": str(first.revision)}))
    assert stored.obj["data"] == {"x": "2"}


@in_room
async def test_the_object_and_its_status_have_their_say_apart(room: Room) -> None:
    node = config("nodes", spec={"unschedulable": True}, status={"phase": "Pending"})
    stored, _ = await apply(room, node, "nodes")
    assert "phase" not in stored.obj.get("status", {})
    stored, _ = await apply(room, node | {"spec": {"podCIDR": "10.0.0.0/8"}}, "nodes", subresource="status")
    assert stored.obj["status"]["phase"] == "Pending"
    assert "podCIDR" not in stored.obj["spec"]
    entries = stored.obj["metadata"]["managedFields"]
    assert [(entry.get("subresource", ""), list(entry["fieldsV1"])) for entry in entries] == [
        ("", ["f:spec"]),
        ("status", ["f:status"]),
    ]


@in_room
async def test_a_zero_that_is_applied_overrides(room: Room) -> None:
    await apply(room, config("nodes", spec={"unschedulable": True}), "nodes")
    stored, _ = await apply(room, config("nodes", spec={"unschedulable": False}), "nodes", manager="b", force=True)
    assert "unschedulable" not in stored.obj.get("spec", {})
    assert managers(stored) == ["b"]
