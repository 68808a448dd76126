"""Plans against another API server over HTTPS (law 7), and live views of its objects."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import cast

import pytest

from mooring.apimachinery.schema import Obj
from mooring.apimachinery.watchevent import WatchEvent
from mooring.client.cluster import ClusterClient, ListResult
from mooring.clock import SystemClock
from mooring.controllers.actions import Delete, Scope
from mooring.controllers.bootstrap import TokenCleaner
from mooring.errors import ConflictError, ForbiddenError, NotFoundError, PeerError
from mooring.reconcile import remote
from mooring.reconcile.loop import Reconciler
from mooring.reconcile.remote import LiveView, RemoteApi
from tests.support.liveserver import LiveServer
from tests.support.manualclock import ManualClock


class Ahead(SystemClock):
    """System clock that is hours ahead, so that tokens of the next hours have expired."""

    def now(self) -> datetime:
        return super().now() + timedelta(hours=2)


def test_the_token_cleaner_deletes_an_expired_token_of_another_server(live_server: LiveServer) -> None:
    async def run() -> None:
        async with live_server.client() as client:
            short = await live_server.create_token_in(client, ttl=timedelta(hours=1))
            long = await live_server.create_token_in(client, ttl=timedelta(hours=9))
            loop = asyncio.create_task(
                Reconciler((TokenCleaner(),), RemoteApi(client), Ahead(), secrets.token_bytes).run()
            )
            try:
                await live_server.signature(client, short.id, present=False)
            finally:
                loop.cancel()
                await asyncio.gather(loop, return_exceptions=True)
            with pytest.raises(NotFoundError):
                await client.get("secrets", f"bootstrap-token-{short.id}", "kube-system")
            assert await client.get("secrets", f"bootstrap-token-{long.id}", "kube-system")

    asyncio.run(run())


def test_a_view_holds_the_first_list_and_every_change(live_server: LiveServer) -> None:
    async def run() -> None:
        async with live_server.client() as client:
            api = RemoteApi(client)
            events: asyncio.Queue[tuple[str, bool]] = asyncio.Queue()
            await client.create("configmaps", config_map("before"))

            def on_event(plural: str, obj: Obj, deleted: bool) -> None:
                if obj["metadata"]["namespace"] != "default" or obj["metadata"]["name"] == "kube-root-ca.crt":
                    return
                assert (api.views[plural].get(obj["metadata"]["name"], "default") is None) is deleted
                events.put_nowait((obj["metadata"]["name"], deleted))

            stop = await api.follow(("configmaps",), on_event)
            assert await events.get() == ("before", False)
            made = await api.create("configmaps", config_map("after"))
            assert await events.get() == ("after", False)
            changed = await api.update("configmaps", {**made, "data": {"a": "b"}})
            assert await events.get() == ("after", False)
            with pytest.raises(ConflictError):
                await api.update("configmaps", {**made, "data": {"a": "c"}})
            with pytest.raises(ConflictError):
                await api.delete(Delete("configmaps", "default", "after", "another-uid"))
            await api.delete(Delete("configmaps", "default", "after", changed["metadata"]["uid"]))
            assert await events.get() == ("after", True)
            await stop()
            await client.delete("configmaps", "before", "default")

    asyncio.run(asyncio.wait_for(run(), 30))


def config_map(name: str) -> Obj:
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "namespace": "default"}}


class Scripted:
    """A client whose list and watch do what a test says, in order: objects, or an error."""

    def __init__(self, *steps: Sequence[Obj] | Exception) -> None:
        self.clock = ManualClock()
        self.steps = list(steps)
        self.listed: list[tuple[str, str, str]] = []

    async def list(self, plural: str, namespace: str, *, label_selector: str, field_selector: str) -> ListResult:
        self.listed.append((plural, namespace, field_selector))
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return ListResult(tuple(step), "1")

    async def watch(self, *arguments: object, **options: object) -> AsyncIterator[WatchEvent]:
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        for one in step:
            yield WatchEvent("ADDED", one)


class Lost(Scripted):
    """A client that lists and can never watch."""

    async def list(self, plural: str, namespace: str, *, label_selector: str, field_selector: str) -> ListResult:
        return ListResult((), "1")

    async def watch(self, *arguments: object, **options: object) -> AsyncIterator[WatchEvent]:
        for error in (PeerError("nothing answers"),):
            raise error
        yield WatchEvent("ADDED", {})


def following(client: Scripted, **scopes: Scope) -> RemoteApi:
    return RemoteApi(cast(ClusterClient, client), scopes)


def test_of_a_kind_with_a_scope_only_that_part_is_listed() -> None:
    async def run() -> None:
        client = Scripted([obj("a", "1")], [])
        api = following(client, secrets=Scope("kube-system", "type=x"))
        stop = await api.follow(("secrets",), lambda *event: None)
        await stop()
        assert client.listed == [("secrets", "kube-system", "type=x")]

    asyncio.run(run())


def test_a_refusal_of_the_first_list_ends_following() -> None:
    async def run() -> None:
        with pytest.raises(ForbiddenError):
            await following(Scripted(ForbiddenError("no"))).follow(("secrets",), lambda *event: None)

    asyncio.run(run())


@pytest.mark.parametrize("error", [ForbiddenError("no"), RuntimeError("a fault")], ids=["a refusal", "a fault"])
def test_what_ends_following_later_is_reported(error: Exception) -> None:
    async def run() -> None:
        seen: list[str] = []
        api = following(Scripted([obj("a", "1")], error))
        stop = await api.follow(("secrets",), lambda plural, one, deleted: seen.append(one["metadata"]["name"]))
        assert await api.refused() is error
        assert seen == ["a"]
        assert api.views["secrets"].get("a", "n") is not None, "the view stays as it was"
        await stop()

    asyncio.run(run())


def test_an_error_that_all_kinds_meet_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        client = Lost()
        stop = await following(client).follow(("secrets", "nodes"), lambda *event: None)
        await client.clock.advance(5)
        assert len(caplog.records) == 1
        await stop()

    asyncio.run(run())


def test_remembered_errors_are_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(remote, "MAX_ERRORS", 1)

    async def run() -> None:
        errors = [PeerError(text) for text in ("one", "two", "one", "one")]
        client = Scripted([obj("a", "1")], *errors, *[PeerError("one")] * 9)
        stop = await following(client).follow(("secrets",), lambda *event: None)
        await client.clock.advance(10)
        assert [one.getMessage().split()[2] for one in caplog.records] == ["one;", "two;", "one;"]
        await stop()

    asyncio.run(run())


def test_temporary_errors_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        client = Scripted([obj("a", "1")], *[PeerError("nothing answers")] * 20)
        stop = await following(client).follow(("secrets",), lambda *event: None)
        await client.clock.advance(50)
        assert [one.getMessage() for one in caplog.records] == ["following secrets: nothing answers; trying again"]
        await client.clock.advance(100)
        assert 2 <= len(caplog.records) <= 3
        await stop()

    asyncio.run(run())


def test_access_reviews_are_created_on_the_server(live_server: LiveServer) -> None:
    def review(user: str) -> Obj:
        attributes = {"verb": "get", "resource": "secrets", "namespace": "kube-system"}
        spec = {"user": user, "resourceAttributes": attributes, "groups": ["system:masters"] if user == "root" else []}
        return {"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "spec": spec}

    async def run() -> tuple[bool, bool]:
        async with live_server.client() as client:
            api = RemoteApi(client)
            return await api.allows(review("root")), await api.allows(review("nobody"))

    assert asyncio.run(run()) == (True, False)


def obj(name: str, version: str, uid: str = "u") -> Obj:
    return {"metadata": {"name": name, "namespace": "n", "resourceVersion": version, "uid": uid}}


def test_a_second_list_is_reported_as_differences() -> None:
    view = LiveView()
    view.replace([obj("same", "1"), obj("changed", "2"), obj("deleted", "3"), obj("remade", "4", "old")])
    before = view.revision
    differences = view.replace([obj("same", "1"), obj("changed", "5"), obj("new", "6"), obj("remade", "7", "new")])
    assert [(one["metadata"]["name"], deleted) for one, deleted in differences] == [
        ("deleted", True), ("remade", True), ("changed", False), ("new", False), ("remade", False),
    ]  # fmt: skip
    assert view.revision > before
    assert [one["metadata"]["name"] for one in view.list("n")] == ["changed", "new", "remade", "same"]
    assert list(view.list("other")) == []


def test_dropping_a_missing_object_changes_nothing() -> None:
    view = LiveView()
    view.put(obj("a", "1"))
    before = view.revision
    view.drop(obj("b", "2"))
    assert view.revision == before
    view.drop(obj("a", "3"))
    assert list(view.list()) == []


def test_a_remote_view_keeps_no_history_of_changes() -> None:
    view = LiveView()
    view.put(obj("a", "1"))
    assert view.changed(view.revision) == ()
    assert view.changed(0) is None
