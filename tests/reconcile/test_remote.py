"""Plans against another API server over HTTPS (law 7), and live views of its objects."""

from __future__ import annotations

import asyncio
import secrets
from datetime import datetime, timedelta

import pytest

from mooring.apimachinery.schema import Obj
from mooring.clock import SystemClock
from mooring.controllers.actions import Delete
from mooring.controllers.bootstrap.tokencleaner import TokenCleaner
from mooring.errors import ConflictError, NotFoundError
from mooring.reconcile.loop import Reconciler
from mooring.reconcile.remote import LiveView, RemoteApi
from tests.support.liveserver import LiveServer


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
