"""The controller loop (law 7): events, requeues, preconditions, failures, access checks, consecutive deletes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from mooring.api.core.event import new_event
from mooring.api.view import Views, guarded, readable
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import (
    Action,
    CheckAccess,
    CommitPrecondition,
    Controller,
    Create,
    Delete,
    Entropy,
    Key,
    Requeue,
    Retry,
    Update,
)
from mooring.errors import ForbiddenError, NotFoundError, StorageError, UnreadableObjectError
from mooring.reconcile.clusterapi import OnEvent
from mooring.reconcile.loop import MAX_ACCESS_CHECKS, TURN_SECONDS, Reconciler
from mooring.reconcile.registryapi import RegistryApi
from tests.support.loops import api_of, exists, running, until
from tests.support.manualclock import EPOCH, settle
from tests.support.registryroom import Room, counting_entropy, in_room, masters_only, secret

Plan = Callable[[Key, Views, datetime], Sequence[Action]]


@dataclass
class Scripted:
    """Controller of ConfigMaps in `default` with a plan that the test provides."""

    script: Plan
    name: str = "scripted-controller"
    watches: tuple[str, ...] = ("configmaps",)
    planned: list[tuple[str, datetime]] = field(default_factory=list)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        metadata = obj["metadata"]
        if metadata["name"].startswith("unreadable"):
            raise KeyError(metadata["name"])
        return ((metadata["namespace"], metadata["name"]),)

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        self.planned.append((key[1], now))
        return self.script(key, views, now)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.planned]


def config_map(name: str) -> Obj:
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, "data": {}}


def marker(name: str) -> Create:
    """Return the creation of a Secret that marks a step of a plan."""
    return Create("secrets", {**secret(name), "metadata": {"name": name, "namespace": "default"}})


def nothing(key: Key, views: Views, now: datetime) -> Sequence[Action]:
    return ()


def marking(key: Key, views: Views, now: datetime) -> Sequence[Action]:
    return (marker(f"seen-{key[1]}"),)


@in_room
async def test_existing_and_changed_objects_are_planned(room: Room) -> None:
    await room.create("configmaps", config_map("old"))
    controller = Scripted(nothing)
    async with running(room, [controller]):
        await until(lambda: controller.names == ["old"])
        await room.create("configmaps", config_map("new"))
        await until(lambda: controller.names == ["old", "new"])
        await room.delete("configmaps", "old")
        await until(lambda: controller.names == ["old", "new", "old"])
        assert controller.planned[0][1] == room.clock.now()


@in_room
async def test_after_the_end_no_kind_is_followed(room: Room) -> None:
    controller = Scripted(nothing)
    async with running(room, [controller]):
        assert room.registry.cache.kinds["configmaps"].watches == 1
    assert room.registry.cache.kinds["configmaps"].watches == 0


@in_room
async def test_a_key_is_planned_again_at_its_requeue_time(room: Room) -> None:
    due = EPOCH + timedelta(hours=5)
    controller = Scripted(lambda key, views, now: (Requeue(due),) if now < due else ())
    await room.create("configmaps", config_map("a"))
    async with running(room, [controller]):
        await until(lambda: controller.names == ["a"])
        await room.clock.advance(5 * 3600 - 1)
        assert controller.names == ["a"]
        await room.clock.advance(1)
        await until(lambda: controller.names == ["a", "a"])
        assert controller.planned[1][1] == due


@in_room
async def test_a_failing_plan_is_retried_and_other_keys_go_on(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    def bad(key: Key, views: Views, now: datetime) -> Sequence[Action]:
        if key[1] == "bad" and now == EPOCH:
            raise RuntimeError("broken plan")
        return marking(key, views, now)

    await room.create("configmaps", config_map("bad"))
    await room.create("configmaps", config_map("good"))
    one, other = Scripted(bad), Scripted(lambda key, views, now: (marker(f"other-{key[1]}"),), "other-controller")
    async with running(room, [one, other]) as loop:
        await until(lambda: exists(room, "secrets", "seen-good", "default"), "another key of the same controller")
        await until(lambda: exists(room, "secrets", "other-bad", "default"), "another controller")
        assert not exists(room, "secrets", "seen-bad", "default")
        await room.clock.advance(0.005)
        await until(lambda: exists(room, "secrets", "seen-bad", "default"), "tried again")
        assert loop.healthy
    assert "scripted-controller default/bad: trying again in 0.005 s" in caplog.text


@in_room
async def test_an_object_that_a_controller_cannot_parse_does_not_stop_events(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Scripted(nothing), Scripted(nothing, "second-controller")
    await room.create("configmaps", config_map("unreadable-one"))
    async with running(room, [first, second]):
        await room.create("configmaps", config_map("unreadable-two"))
        await room.create("configmaps", config_map("fine"))
        await until(lambda: first.names == second.names == ["fine"])
    assert caplog.text.count("an event of configmaps could not be processed") == 4


@in_room
async def test_a_plan_that_returns_retry_is_planned_with_back_off(room: Room) -> None:
    controller = Scripted(lambda key, views, now: (Retry("not yet"), marker("never")))
    await room.create("configmaps", config_map("a"))
    async with running(room, [controller]):
        for _ in range(6):
            await room.clock.advance(0.32)
        waits = [
            round((after - before).total_seconds(), 6)
            for (_, before), (_, after) in zip(controller.planned, controller.planned[1:], strict=False)
        ]
        assert waits[:6] == [0.005, 0.01, 0.02, 0.04, 0.08, 0.16]
        assert not exists(room, "secrets", "never", "default"), "what comes after is not applied"


@in_room
async def test_a_key_that_waits_is_logged_once_for_each_reason(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    reasons = ["why"] * 4 + ["another"] * 4 + [""] + ["why"] * 4
    left = list(reasons)

    def waits(key: Key, views: Views, now: datetime) -> Sequence[Action]:
        reason = left.pop(0) if left else ""
        return (Retry(reason),) if reason else ()

    caplog.set_level(logging.INFO, "mooring.controllers")
    controller = Scripted(waits)
    await room.create("configmaps", config_map("a"))
    async with running(room, [controller]):
        for _ in range(8):
            await room.clock.advance(0.64)
        await until(lambda: len(controller.planned) == 9)
        await room.patch("configmaps", "a", {"data": {"x": "y"}})
        for _ in range(8):
            await room.clock.advance(0.64)
        await until(lambda: not left)
    lines = [line for line in caplog.messages if " waits: " in line]
    assert lines == [f"scripted-controller default/a waits: {reason}" for reason in ("why", "another", "why")]


@in_room
async def test_success_resets_the_back_off(room: Room) -> None:
    left = [3]

    def sometimes(key: Key, views: Views, now: datetime) -> Sequence[Action]:
        left[0] -= 1
        return (Retry("again"),) if left[0] % 3 else ()

    controller = Scripted(sometimes)
    await room.create("configmaps", config_map("a"))
    async with running(room, [controller]):
        await room.clock.advance(1)
        assert len(controller.planned) == 3
        await room.patch("configmaps", "a", {"data": {"x": "y"}})
        await until(lambda: len(controller.planned) == 4)
        await room.clock.advance(0.005)
        await until(lambda: len(controller.planned) == 5)


@in_room
async def test_a_key_whose_plan_was_long_rests_twice_as_long(room: Room) -> None:
    def long(key: Key, views: Views, now: datetime) -> Sequence[Action]:
        room.clock.spend(0.1 if key[1] == "long" else 0.001)
        return ()

    await room.create("configmaps", config_map("long"))
    controller = Scripted(long)
    async with running(room, [controller]):
        await until(lambda: controller.names == ["long"])
        for step in range(3):
            await room.patch("configmaps", "long", {"data": {"x": str(step)}})
        await room.clock.advance(0.19)
        assert controller.names == ["long"]
        await room.create("configmaps", config_map("short"))
        await room.patch("configmaps", "short", {"data": {"x": "y"}})
        await until(lambda: controller.names == ["long", "short", "short"], "others do not wait for it")
        await room.clock.advance(0.01)
        await until(lambda: controller.names == ["long", "short", "short", "long"], "once for all that happened")


@dataclass
class Fanning(Scripted):
    """Controller to which each ConfigMap names hundreds of keys."""

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        return [("default", f"key-{number}") for number in range(300)]


@in_room
async def test_hundreds_of_keys_of_one_event_leave_turns_to_the_event_loop(room: Room) -> None:
    def short(key: Key, views: Views, now: datetime) -> Sequence[Action]:
        room.clock.spend(TURN_SECONDS / 5)
        return ()

    controller, turns = Fanning(short), [0]

    async def count_turns() -> None:
        while True:
            turns.append(len(controller.planned))
            await asyncio.sleep(0)

    async with running(room, [controller]):
        counting = asyncio.create_task(count_turns())
        await room.create("configmaps", config_map("many"))
        await until(lambda: len(controller.planned) == 300)
        counting.cancel()
    assert max(later - earlier for earlier, later in pairwise(turns)) <= 12, "six of a turn, and six of the next"


# -- preconditions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("routine", "level"), [(False, "WARNING"), (True, "INFO")])
@in_room
async def test_a_conflict_is_planned_again_with_the_new_state(
    room: Room, caplog: pytest.LogCaptureFixture, routine: bool, level: str
) -> None:
    """Another client edits the object between the plan and its write. What the plan announces is logged once it is written."""
    caplog.set_level(logging.INFO, "mooring.controllers")
    await room.create("configmaps", config_map("a"))

    class Meddled(RegistryApi):
        meddled = False

        async def update(
            self, plural: str, obj: Obj, subresource: str = "", precondition: CommitPrecondition | None = None
        ) -> Obj:
            if not self.meddled:
                self.meddled = True
                await room.patch("configmaps", "a", {"data": {"theirs": "x"}})
            return await super().update(plural, obj, subresource, precondition)

    def ours(key: Key, views: Views, now: datetime) -> Sequence[Action]:
        found = views["configmaps"].get(key[1], key[0])
        assert found is not None
        data = found.get("data") or {}
        written = {**found, "data": {**data, "ours": "y"}}
        return (
            ()
            if "ours" in data
            else (Update("configmaps", written, announcement="ours is there", is_routine=routine), marker("after"))
        )

    api = Meddled(room.registry, masters_only, room.clock)
    async with running(room, [Scripted(ours)], api):
        await room.clock.advance(1)
        await until(lambda: exists(room, "secrets", "after", "default"))
    assert (await room.get("configmaps", "a")).obj["data"] == {"theirs": "x", "ours": "y"}
    assert [one.levelname for one in caplog.records if one.getMessage() == "ours is there"] == [level]


class Refusing(RegistryApi):
    """Registry access that refuses every creation of Secrets with one error."""

    def __init__(self, room: Room, error: Exception) -> None:
        super().__init__(room.registry, masters_only, room.clock)
        self.error = error

    async def create(self, plural: str, obj: Obj) -> Obj:
        if obj["metadata"]["name"] == "refused":
            raise self.error
        return await super().create(plural, obj)


async def planned_after(room: Room, first: Action, api: RegistryApi | None = None) -> bool:
    """Return true when the plan continued after its first action."""
    await room.create("configmaps", config_map("a"))
    async with running(room, [Scripted(lambda key, views, now: (first, marker("after")))], api):
        await room.clock.advance(0.1)
        return exists(room, "secrets", "after", "default")


def edit(namespace: str = "default", name: str = "a", version: str = "1") -> Update:
    metadata = {"name": name, "namespace": namespace, "resourceVersion": version}
    return Update("configmaps", {**config_map(name), "metadata": metadata})


@pytest.mark.parametrize(
    ("action", "goes_on"),
    [
        pytest.param(
            Create("configmaps", {"metadata": {"name": "a", "namespace": "default"}}), True, id="it exists already"
        ),
        pytest.param(
            Create("configmaps", {"metadata": {"name": "a", "namespace": "default"}}, must_be_new=True),
            False,
            id="it exists already and had to be new",
        ),
        pytest.param(edit(name="gone"), True, id="what it changes is gone"),
        pytest.param(edit(), False, id="what it changes is another version"),
        pytest.param(Delete("configmaps", "default", "gone", "u"), True, id="what it deletes is gone"),
        pytest.param(Delete("configmaps", "default", "a", "another"), True, id="what it deletes is another object"),
        pytest.param(
            Delete("configmaps", "default", "a", "another", precondition=lambda views, now: True),
            False,
            id="what it deletes with a precondition is another object",
        ),
        pytest.param(
            Delete("configmaps", "default", "a", "", precondition=lambda views, now: False),
            False,
            id="the precondition of its deletion has failed",
        ),
        pytest.param(
            Create("secrets", {"metadata": {"name": "s", "namespace": "none"}}), True, id="its namespace is gone"
        ),
        pytest.param(
            Create("secrets", {"metadata": {"name": "NO", "namespace": "default"}}), False, id="it is invalid"
        ),
    ],
)
@in_room
async def test_a_plan_continues_or_stops_when(room: Room, action: Action, goes_on: bool) -> None:
    assert await planned_after(room, action) == goes_on


@in_room
async def test_a_deletion_is_judged_at_its_commit(room: Room) -> None:
    verdicts = [True, False]
    deletion = Delete("configmaps", "default", "a", "", precondition=lambda views, now: verdicts.pop(0))
    assert not await planned_after(room, deletion)
    assert exists(room, "configmaps", "a", "default")


@in_room
async def test_a_terminating_namespace_is_no_failure(room: Room) -> None:
    await room.create("namespaces", {"metadata": {"name": "going"}})
    await room.delete("namespaces", "going")
    assert await planned_after(room, Create("secrets", {"metadata": {"name": "s", "namespace": "going"}}))


@in_room
async def test_another_forbidden_error_is_a_failure(room: Room) -> None:
    refused = Create("secrets", {"metadata": {"name": "refused", "namespace": "default"}})
    assert not await planned_after(room, refused, Refusing(room, ForbiddenError("no")))


# -- asking --------------------------------------------------------------------------------------------------------------


def review(user: str, *groups: str) -> Obj:
    spec = {"user": user, "groups": list(groups), "resourceAttributes": {"verb": "get", "resource": "secrets"}}
    return {"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "spec": spec}


@in_room
async def test_actions_of_an_access_check_are_applied_before_the_following_ones(room: Room) -> None:
    def ask(key: Key, views: Views, now: datetime) -> Sequence[Action]:
        return (
            CheckAccess(review("root", "system:masters"), lambda allowed: (marker(f"root-{allowed}".lower()),)),
            CheckAccess(review("mallory"), lambda allowed: (marker(f"mallory-{allowed}".lower()),)),
            marker("rest"),
        )

    await room.create("configmaps", config_map("a"))
    async with running(room, [Scripted(ask)]):
        await until(lambda: exists(room, "secrets", "rest", "default"))
    listed = (await room.list("secrets")).items
    assert [item.name for item in sorted(listed, key=lambda item: item.revision)] == [
        "root-true",
        "mallory-false",
        "rest",
    ]


@in_room
async def test_access_checks_of_a_plan_are_bounded(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    asked = []

    def again(allowed: bool) -> Sequence[Action]:
        asked.append(allowed)
        return (CheckAccess(review("x"), again),)

    await room.create("configmaps", config_map("a"))
    async with running(room, [Scripted(lambda key, views, now: again(True))]):
        await until(lambda: "the plan checks access or resolves names without end" in caplog.text)
    assert len(asked) == MAX_ACCESS_CHECKS + 1


# -- deletes that follow each other --------------------------------------------------------------------------------------


class Slow(RegistryApi):
    """Registry access whose deletes wait for the test."""

    def __init__(self, room: Room, broken: str = "") -> None:
        super().__init__(room.registry, masters_only, room.clock)
        self.begun: list[str] = []
        self.gate = asyncio.Event()
        self.broken = broken

    async def delete(self, action: Delete) -> None:
        self.begun.append(action.name)
        await self.gate.wait()
        if action.name == self.broken:
            raise StorageError("disk full")
        await super().delete(action)


def emptying(key: Key, views: Views, now: datetime) -> Sequence[Action]:
    """Plan a marker, the deletion of every Secret called s…, and a second marker."""
    found = [obj["metadata"] for obj in views["secrets"].list("default") if obj["metadata"]["name"].startswith("s")]
    return (marker("first"), *(Delete("secrets", "default", one["name"], one["uid"]) for one in found), marker("last"))


@in_room
async def test_consecutive_deletes_run_concurrently_and_in_order_with_other_actions(room: Room) -> None:
    for number in range(9):
        await room.create("secrets", secret(f"s{number}"))
    await room.create("configmaps", config_map("a"))
    api = Slow(room)
    async with running(room, [Scripted(emptying)], api, workers=4):
        await until(lambda: len(api.begun) == 4)
        assert exists(room, "secrets", "first", "default")
        assert not exists(room, "secrets", "last", "default")
        api.gate.set()
        await until(lambda: exists(room, "secrets", "last", "default"))
    assert await room.names("secrets") == ["first", "last"]


@in_room
async def test_after_a_failed_delete_no_other_starts_and_the_plan_is_retried(room: Room) -> None:
    for number in range(9):
        await room.create("secrets", secret(f"s{number}"))
    await room.create("configmaps", config_map("a"))
    api = Slow(room, broken="s0")
    async with running(room, [Scripted(emptying)], api, workers=4):
        await until(lambda: len(api.begun) == 4)
        api.gate.set()
        await settle()
        assert len(api.begun) == 4
        assert not exists(room, "secrets", "last", "default")
        api.broken = ""
        await room.clock.advance(0.005)
        await until(lambda: exists(room, "secrets", "last", "default"))


# -- the loop itself -----------------------------------------------------------------------------------------------------


class Unfollowable(RegistryApi):
    broken = True

    async def follow(self, plurals: Sequence[str], on_event: OnEvent) -> Callable[[], Awaitable[None]]:
        if self.broken:
            raise StorageError("cannot be read")
        return await super().follow(plurals, on_event)


@in_room
async def test_a_loop_that_cannot_follow_is_unhealthy_until_it_can(room: Room) -> None:
    api = Unfollowable(room.registry, masters_only, room.clock)
    loop = Reconciler([Scripted(nothing)], api, room.clock, counting_entropy())
    with pytest.raises(StorageError):
        await loop.run()
    assert not loop.healthy
    api.broken = False
    task = asyncio.ensure_future(loop.run())
    await until(lambda: loop.healthy)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@in_room
async def test_when_one_kind_cannot_be_followed_none_is(room: Room) -> None:
    with pytest.raises(KeyError):
        await api_of(room).follow(["configmaps", "widgets"], lambda plural, obj, gone: None)
    assert room.registry.cache.kinds["configmaps"].watches == 0


@in_room
async def test_the_loop_logs_keys_and_never_contents(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "mooring.controllers")
    controller: Controller = Scripted(lambda key, views, now: (Update("configmaps", {"metadata": {"name": "gone!"}}),))
    await room.create("configmaps", {**config_map("a"), "data": {"password": "hunter2"}})
    async with running(room, [controller]):
        await until(lambda: exists(room, "configmaps", "a", "default"))
    assert "hunter2" not in caplog.text


@in_room
async def test_only_events_that_the_loop_itself_wrote_are_passed_on(room: Room) -> None:
    """Of a name that is taken, another process or a machine wrote the Event."""

    def event(name: str) -> Obj:
        return new_event({"kind": "Node", "name": "n"}, "R", "t", EPOCH, metadata={"name": name}, is_warning=False)

    actions = (Create("events", event("taken")), Create("events", event("own")), marker("done"))
    passed_on: list[Obj] = []
    controller = Scripted(lambda key, views, now: actions)
    loop = Reconciler([controller], api_of(room), room.clock, counting_entropy(), event_written=passed_on.append)
    await room.create("events", event("taken"))
    task = asyncio.ensure_future(loop.run())
    await room.create("configmaps", config_map("a"))
    await until(lambda: exists(room, "secrets", "done", "default"))
    await room.create("events", event("forged"))
    await settle()
    stored = room.registry.views["events"].get("own", "default")
    assert passed_on == [stored]
    assert passed_on[0]["metadata"]["uid"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@in_room
async def test_get_reads_one_object(room: Room) -> None:
    await room.create("configmaps", config_map("a"))
    assert (await api_of(room).get("configmaps", "default", "a"))["metadata"]["name"] == "a"
    with pytest.raises(NotFoundError):
        await api_of(room).get("configmaps", "default", "b")


@in_room
async def test_plan_again_enqueues_all_keys_of_a_controller(room: Room) -> None:
    asked, other = Scripted(nothing), Scripted(nothing, name="another-controller")
    async with running(room, [asked, other]) as reconciler:
        for name in ("a", "b", "unreadable"):
            await room.create("configmaps", config_map(name), "default")
        await until(lambda: sorted(asked.names) == ["a", "b"])
        reconciler.plan_again(asked.name, "a-controller-that-does-not-run")
        await until(lambda: sorted(asked.names) == ["a", "a", "b", "b"])
        assert sorted(other.names) == ["a", "b"]
    reconciler.plan_again(asked.name)
    await settle()
    assert len(asked.names) == 4


@in_room
async def test_an_object_that_cannot_be_read_stops_the_plans_that_need_it_and_no_other(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="mooring.controllers")
    await room.create("secrets", secret("lost"))
    for name in ("needs", "goes-on"):
        await room.create("configmaps", {"metadata": {"name": name}})
    good = await room.storage.get("/registry/secrets/default/lost")
    assert good is not None
    await room.storage.update(good.key, b"junk", expected=good.revision)
    await settle()

    def script(key: Key, views: Views, now: datetime) -> Sequence[Action]:
        if key[1] == "needs" and views["secrets"].get("lost", "default") is None:
            return [Create("configmaps", {"metadata": {"name": "wrong", "namespace": "default"}})]
        return [Create("configmaps", {"metadata": {"name": f"{key[1]}-done", "namespace": "default"}})]

    controller = Scripted(script, watches=("configmaps", "secrets"))
    async with running(room, [controller]):
        await until(lambda: exists(room, "configmaps", "goes-on-done", "default"))
        for _ in range(10):
            await room.clock.advance(10)
        waiting = [record.getMessage() for record in caplog.records if "default/needs waits" in record.getMessage()]
        assert len(waiting) == 1
        assert "secrets default/lost cannot be read" in waiting[0]
        assert "Traceback" not in caplog.text
        assert controller.names.count("needs") > 3
        found = await room.storage.get(good.key)
        assert found is not None
        await room.storage.update(good.key, good.value, expected=found.revision)
        await room.clock.advance(1000)
        await until(lambda: exists(room, "configmaps", "needs-done", "default"))
        assert not exists(room, "configmaps", "wrong", "default")
    assert not exists(room, "configmaps", "wrong", "default")


@in_room
async def test_a_list_that_a_plan_needs_whole_is_refused_while_one_object_cannot_be_read(room: Room) -> None:
    await room.create("secrets", secret("a"))
    await room.storage.create("/registry/secrets/default/lost", b"junk")
    await settle()
    view = guarded(room.registry.views)["secrets"]
    with pytest.raises(UnreadableObjectError, match="secrets default/lost cannot be read"):
        view.list("default")
    assert list(view.list("other")) == []
    assert [obj["metadata"]["name"] for obj in readable(view).list("default")] == ["a"]
    assert readable(readable(view)) is readable(view)
    assert (view.revision, view.changed(0)) == (readable(view).revision, readable(view).changed(0))
    assert view.problem("lost", "default")
    assert view.problem("a", "default") == ""
    assert list(view.unreadable()) == [("default", "lost")]
