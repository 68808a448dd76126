"""Controllers outside of a server: what happens when kinds are not served, refused, or refused later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.controllers.actions import Action, Controller, Scope
from mooring.errors import ApiError, ForbiddenError, NotFoundError, PeerError
from mooring.reconcile.leaderelection import Election, LeaderElector
from mooring.reconcile.registryapi import RegistryApi
from mooring.reconcile.remote import RemoteApi
from mooring.reconcile.standalonecontrollers import FIRST_CHECK, FIRST_PAUSE, StandaloneControllers
from tests.support.loops import api_of, until
from tests.support.manualclock import settle
from tests.support.registryroom import Room, counting_entropy, in_room, masters_only


class Cluster(RegistryApi):
    """An API server that refuses some kinds."""

    def __init__(self, room: Room) -> None:
        super().__init__(room.registry, masters_only, room.clock)
        self.refusals: dict[str, Exception] = {}
        self.revoked: asyncio.Queue[Exception] = asyncio.Queue()
        self.checked: list[str] = []

    async def check(self, plural: str) -> None:
        self.checked.append(plural)
        if plural in self.refusals:
            raise self.refusals[plural]

    async def refused(self) -> Exception:
        return await self.revoked.get()


class Recorder:
    """A controller that records the objects that it sees."""

    def __init__(self, name: str, *watches: str) -> None:
        self.name = name
        self.watches = watches
        self.seen: list[str] = []
        self.starts = 0

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Any) -> list[tuple[str, str]]:
        self.seen.append(obj["metadata"]["name"])
        return []

    def plan(self, *arguments: Any) -> tuple[Action, ...]:
        raise AssertionError("no key is enqueued")


@asynccontextmanager
async def standing(room: Room, cluster: Cluster, *recorders: Recorder) -> AsyncIterator[StandaloneControllers]:
    """Run controllers as the elector does: work that ends is started again."""
    controllers = StandaloneControllers(
        cast(tuple[Controller, ...], recorders),
        lambda: cast(RemoteApi, cluster),
        {"secrets": Scope("kube-system", "type=x")},
        room.clock,
        counting_entropy(),
    )
    elector = LeaderElector(api_of(room), room.clock, "one", election=Election(name="elsewhere"))
    task = asyncio.ensure_future(elector.run(controllers.run))
    try:
        yield controllers
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


MISSING = NotFoundError("the server could not find the requested resource")
DENIED = ForbiddenError('secrets is forbidden: User "x" cannot list resource "secrets"')

RIGHTS = (
    "apply what mooring controllers manifests prints and run as its ServiceAccount mooring-controllers, or grant this user "
    "the rights"
)


@pytest.mark.parametrize(
    ("plural", "error", "message"),
    [
        ("secrets", MISSING, "the server does not serve secrets; apply what mooring controllers manifests prints"),
        (
            "secrets",
            DENIED,
            f"list and watch of secrets in kube-system with type=x are not allowed ({DENIED}); {RIGHTS}",
        ),
        ("nodes", DENIED, f"list and watch of nodes are not allowed ({DENIED}); {RIGHTS}"),
    ],
    ids=["a kind that is not served", "a part of a kind that is not allowed", "a kind that is not allowed"],
)
@in_room
async def test_a_controller_whose_kind_is_refused_does_not_run_and_the_others_do(
    room: Room, plural: str, error: ApiError, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, well, ill = Cluster(room), Recorder("well", "configmaps"), Recorder("ill", "configmaps", plural)
    cluster.refusals[plural] = error
    await room.create("configmaps", {"metadata": {"name": "c"}}, "default")
    async with standing(room, cluster, well, ill) as controllers:
        await until(lambda: controllers.running == ("well",))
        await until(lambda: "c" in well.seen)
        assert ill.seen == []
        assert controllers.stopped == {"ill": message}
        assert controllers.healthy
        assert warnings(caplog) == [f"ill does not run: {message}"]


@in_room
async def test_a_refused_kind_is_looked_for_again_and_warned_about_once(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, ill = Cluster(room), Recorder("ill", "secrets")
    cluster.refusals["secrets"] = MISSING
    async with standing(room, cluster, ill) as controllers:
        await until(lambda: bool(controllers.stopped))
        for _ in range(6):
            await room.clock.advance(60)
        assert 4 <= len(cluster.checked) <= 12, "less often with time"
        assert len(warnings(caplog)) == 1
        del cluster.refusals["secrets"]
        for _ in range(4):
            await room.clock.advance(30)
        await until(lambda: controllers.running == ("ill",))
        assert controllers.stopped == {}


@in_room
async def test_a_kind_that_is_refused_later_stops_what_needs_it(room: Room) -> None:
    cluster, well, ill = Cluster(room), Recorder("well", "configmaps"), Recorder("ill", "secrets")
    async with standing(room, cluster, well, ill) as controllers:
        await until(lambda: controllers.running == ("well", "ill"))
        cluster.refusals["secrets"] = DENIED
        cluster.revoked.put_nowait(DENIED)
        await until(lambda: controllers.running == ())
        await room.clock.advance(2)
        await until(lambda: controllers.running == ("well",))
        del cluster.refusals["secrets"]
        await room.clock.advance(FIRST_CHECK)
        await room.clock.advance(2)
        await until(lambda: controllers.running == ("well", "ill"))


@in_room
async def test_a_server_that_cannot_be_reached_is_waited_for(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    cluster, one = Cluster(room), Recorder("one", "secrets")
    cluster.refusals["secrets"] = PeerError("nothing answers there")
    async with standing(room, cluster, one) as controllers:
        await settle()
        assert warnings(caplog) == ["the controllers wait: nothing answers there"]
        cluster.refusals.clear()
        await room.clock.advance(FIRST_PAUSE)
        await until(lambda: controllers.running == ("one",))


@in_room
async def test_a_loop_that_fails_is_unhealthy_until_it_runs_again(room: Room) -> None:
    class Failing(Cluster):
        failures = 1

        async def follow(self, *arguments: Any) -> Any:
            if self.failures:
                self.failures -= 1
                raise PeerError("lost")
            return await super().follow(*arguments)

    cluster, one = Failing(room), Recorder("one", "secrets")
    async with standing(room, cluster, one) as controllers:
        await until(lambda: not controllers.healthy)
        await room.clock.advance(2)
        await until(lambda: controllers.running == ("one",))
        await until(lambda: controllers.healthy)


class Refusing:
    """A client whose list succeeds once and is refused then."""

    def __init__(self, room: Room, error: Exception) -> None:
        self.clock = room.clock
        self.error = error
        self.paths: list[str] = []

    async def get_path(self, path: str) -> Obj:
        self.paths.append(path)
        raise self.error


@in_room
async def test_a_check_lists_one_object_within_the_scope(room: Room) -> None:
    client = Refusing(room, MISSING)
    api = RemoteApi(cast(ClusterClient, client), {"secrets": Scope("kube-system", "type=x")})
    for plural in ("secrets", "nodes"):
        with pytest.raises(NotFoundError):
            await api.check(plural)
    assert client.paths == [
        "/api/v1/namespaces/kube-system/secrets?limit=1&fieldSelector=type%3Dx",
        "/api/v1/nodes?limit=1",
    ]
