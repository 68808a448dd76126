"""A holder of the Lease that was stopped and goes on: nothing of what it planned before takes effect (`kill -STOP`, a long pause).

`clock.spend` is such a stop: time passes, and no coroutine of the process runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

import pytest

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, CommitPrecondition, Create, Delete, Key, Update
from mooring.reconcile.issuancelog import IssuanceLogWriter
from mooring.reconcile.leaderelection import (
    LEASE_SECONDS,
    RENEW_SECONDS,
    RETRY_SECONDS,
    FencedApi,
    FencedError,
    LeaderElector,
)
from mooring.reconcile.loop import Reconciler
from tests.reconcile.test_loop import Scripted, config_map
from tests.support.loops import api_of, exists, until
from tests.support.manualclock import settle
from tests.support.registryroom import Room, counting_entropy, in_room, secret

NAMED = {"name": "a", "namespace": "default"}


class Server:
    """One candidate whose only controller has the given plan."""

    def __init__(self, room: Room, identity: str, script: Callable[[Key, Views, datetime], Sequence[Action]]) -> None:
        self.elector = LeaderElector(api_of(room), room.clock, identity)
        api = FencedApi(api_of(room), lambda: self.elector.may_write)
        loop = Reconciler(
            [Scripted(script)], api, room.clock, counting_entropy(), 1, record=IssuanceLogWriter(api).append
        )
        self._task = asyncio.ensure_future(self.elector.run(loop.run))

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def stored(views: Views) -> Obj:
    found = views["configmaps"].get("a", "default")
    assert found is not None
    return found


ACTIONS: dict[str, Callable[[Views], Action]] = {
    "create": lambda views: Create("secrets", {**secret("late"), "metadata": {"name": "late", "namespace": "default"}}),
    "update": lambda views: Update("configmaps", {**stored(views), "data": {"late": "true"}}),
    "delete": lambda views: Delete.of("configmaps", stored(views)),
}


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
@in_room
async def test_what_was_planned_before_a_stop_is_not_written_after_it(
    room: Room, action: Callable[[Views], Action]
) -> None:
    planned: list[Key] = []

    def stopped_after_planning(key: Key, views: Views, now: datetime) -> Sequence[Action]:
        planned.append(key)
        if len(planned) > 1:
            return ()
        actions = [action(views)]
        room.clock.spend(LEASE_SECONDS + 1)
        return actions

    await room.create("configmaps", config_map("a"))
    server = Server(room, "one", stopped_after_planning)
    await until(lambda: bool(planned))
    await settle()
    assert not exists(room, "secrets", "late", "default")
    assert stored(room.registry.views)["data"] == {}
    await server.stop()


@in_room
async def test_a_holder_that_renews_in_time_writes(room: Room) -> None:
    await room.create("configmaps", config_map("a"))
    server = Server(room, "one", lambda key, views, now: [ACTIONS["create"](views)])
    await until(lambda: exists(room, "secrets", "late", "default"))
    for _ in range(10):
        await room.clock.advance(RETRY_SECONDS)
        assert server.elector.may_write
    room.clock.spend(RENEW_SECONDS)
    assert (server.elector.leading, server.elector.may_write) == (True, False)
    await settle()
    await room.clock.advance(2 * RETRY_SECONDS)
    assert server.elector.may_write, "nobody else has taken the Lease"
    await server.stop()
    assert not server.elector.may_write


class Arriving(FencedApi):
    """Access whose writes were sent before a stop and arrive when `arrive` is set."""

    def __init__(self, room: Room) -> None:
        super().__init__(api_of(room), lambda: True)
        self.arrive = asyncio.Event()
        self.sent = 0

    def _check(self) -> None:
        super()._check()
        self.sent += 1

    async def update(
        self, plural: str, obj: Obj, subresource: str = "", precondition: CommitPrecondition | None = None
    ) -> Obj:
        self._check()
        await self.arrive.wait()
        return await super().update(plural, obj, subresource, precondition)

    async def delete(self, action: Delete) -> None:
        self._check()
        await self.arrive.wait()
        await super().delete(action)

    async def create(self, plural: str, obj: Obj) -> Obj:
        self._check()
        await self.arrive.wait()
        return await super().create(plural, obj)


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
@in_room
async def test_a_write_that_was_sent_before_a_stop_and_arrives_after_it_changes_nothing(
    room: Room, action: Callable[[Views], Action]
) -> None:
    """Meanwhile the next holder has written what the same plan said, and an administrator has changed it again."""
    await room.create("configmaps", config_map("a"))
    api = Arriving(room)
    plans = iter([[action(room.registry.views)]])
    loop = Reconciler([Scripted(lambda key, views, now: next(plans, ()))], api, room.clock, counting_entropy(), 1)
    running = asyncio.ensure_future(loop.run())
    await until(lambda: api.sent > 0)

    await room.update("configmaps", {**stored(room.registry.views), "data": {"by": "the next holder"}})
    await room.create("secrets", {**secret("late"), "data": {"by": "dGhlIG5leHQgaG9sZGVy"}})
    api.arrive.set()
    await settle()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert stored(room.registry.views)["data"] == {"by": "the next holder"}
    late = room.registry.views["secrets"].get("late", "default")
    assert late is not None
    assert late["data"] == {"by": "dGhlIG5leHQgaG9sZGVy"}


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda api: api.update("configmaps", {"metadata": NAMED}), id="an update without resourceVersion"),
        pytest.param(lambda api: api.delete(Delete("configmaps", "default", "a", "")), id="a deletion without uid"),
    ],
)
@in_room
async def test_a_write_without_a_precondition_is_not_sent(
    room: Room, write: Callable[[FencedApi], Awaitable[object]]
) -> None:
    await room.create("configmaps", config_map("a"))
    before = stored(room.registry.views)
    with pytest.raises(FencedError, match="is not sent"):
        await write(FencedApi(api_of(room), lambda: True))
    assert stored(room.registry.views) == before
