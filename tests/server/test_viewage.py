"""Views that judge have a maximum age: what lags behind the store lets nobody in, and 503 says when to try again.

Source: docs/adr/0079-a-view-that-judges-has-a-maximum-age.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from mooring.api.mooring.certificaterevocation import KIND as REVOCATION
from mooring.api.mooring.certificaterevocation import entry_name
from mooring.errors import StorageError
from mooring.identity import MASTERS
from mooring.registry.cache.views import MAX_AGE_SECONDS
from mooring.registry.reader import FRESH_WITHIN
from mooring.registry.write.commit import BEHIND
from mooring.server.authentication.recheck import SILENT
from mooring.storage.contract import Storage
from mooring.storage.memory import MemoryStorage
from tests.registry.test_commit import Late
from tests.server.test_recheck import SECRETS, Offer, Unfinished
from tests.server.test_revocation import serial_number
from tests.support.manualclock import settle
from tests.support.serverroom import Reply, Server, connection, open_server, reply
from tests.support.testca import Pair

LATER = MAX_AGE_SECONDS + 0.25
CONFIGMAPS = "/api/v1/namespaces/kube-public/configmaps"
TOKEN = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "x"}}
ACCESS = {
    "apiVersion": "authorization.k8s.io/v1",
    "kind": "SelfSubjectAccessReview",
    "spec": {"resourceAttributes": {"verb": "get", "resource": "secrets"}},
}
REQUESTS: dict[str, tuple[str, str, Any]] = {
    "read from memory": ("GET", f"{SECRETS}?resourceVersion=0", None),
    "read": ("GET", SECRETS, None),
    "watch": ("GET", f"{SECRETS}?watch=1&resourceVersion=0", None),
    "token review": ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", TOKEN),
    "access review": ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", ACCESS),
    "write": ("POST", CONFIGMAPS, {"metadata": {"name": "late"}}),
    "discovery": ("GET", "/api", None),
}


class Store(Late):
    """A store whose watch can stop, and which can fall silent. It counts the questions for its revision."""

    is_silent = False
    asked = 0

    async def revision(self) -> int:
        self.asked += 1
        if self.is_silent:
            raise StorageError("the store does not answer")
        return await self._inner.revision()


class Scene:
    """A server, its store, and an administrator whose certificate another server revokes."""

    def __init__(self, server: Server, store: Store) -> None:
        self.server = server
        self.store = store
        self.pair: Pair = server.ca.client("jane", MASTERS)
        self.via = connection([self.pair.der])

    async def revoke_elsewhere(self) -> None:
        """Store the revocation of the certificate as another server does, with a watch that delivers nothing here."""
        self.store.open.clear()
        spec = serial_number(self.pair)
        key, of = REVOCATION.key("", entry_name(spec)), REVOCATION.resource
        metadata = {"name": entry_name(spec), "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
        entry = {"apiVersion": of.api_version, "kind": of.kind, "metadata": metadata, "spec": spec}
        await self.server.storage.create(key, json.dumps(entry).encode())

    def send(self, method: str, target: str, body: Any) -> asyncio.Future[Reply]:
        async def send() -> Reply:
            return reply(await self.server.response(method, target, body=body, via=self.via))

        return asyncio.ensure_future(send())


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    stores: list[Store] = []

    def around(storage: MemoryStorage) -> Storage:
        stores.append(Store(storage))
        return cast(Storage, stores[0])

    async with open_server(around=around) as server:
        made = Scene(server, stores[0])
        assert (await server.get(SECRETS, via=made.via)).status == 200
        yield made
        made.store.is_silent = False
        made.store.open.set()
        await settle()
        assert (await server.get(f"{CONFIGMAPS}/late")).status == 404, "nothing was stored"


def refused(answer: Reply) -> tuple[int, str, str | None]:
    return answer.status, answer.message, answer.headers.get("retry-after")


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS.keys())
@pytest.mark.parametrize("catches_up", [True, False])
def test_views_that_lag_behind_the_store_let_nobody_in(request_: tuple[str, str, Any], catches_up: bool) -> None:
    async def body() -> None:
        async with scene() as given:
            await given.revoke_elsewhere()
            await given.server.clock.advance(LATER)
            answer = given.send(*request_)
            await settle()
            assert not answer.done(), "the views lack a write of the store"
            if catches_up:
                given.store.open.set()
                assert refused(await answer) == (401, "Unauthorized", None)
            else:
                await given.server.clock.advance(FRESH_WITHIN)
                assert refused(await answer) == (503, BEHIND, "1")

    asyncio.run(body())


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS.keys())
def test_a_store_that_does_not_answer_lets_nobody_in_by_old_views(request_: tuple[str, str, Any]) -> None:
    async def body() -> None:
        async with scene() as given:
            given.store.is_silent = True
            await given.server.clock.advance(LATER)
            assert refused(await given.send(*request_)) == (503, SILENT, "1")

    asyncio.run(body())


def test_a_read_that_waited_in_vain_is_not_answered_from_the_store() -> None:
    async def body() -> None:
        async with scene() as given:
            await given.revoke_elsewhere()
            answer = given.send("GET", SECRETS, None)
            for _ in range(2):  # one for its own read, and one for its verdict
                await settle()
                assert not answer.done()
                await given.server.clock.advance(FRESH_WITHIN)
            assert refused(await answer) == (503, BEHIND, "1")

    asyncio.run(body())


@pytest.mark.parametrize("catches_up", [True, False])
def test_a_write_whose_body_was_awaited_is_judged_by_young_views(catches_up: bool) -> None:
    async def body() -> None:
        async with scene() as given:
            pending = Unfinished(given.server, CONFIGMAPS, {"metadata": {"name": "late"}}, Offer(given_end, given.via))
            await settle()
            await given.revoke_elsewhere()
            await given.server.clock.advance(LATER)
            pending.arrive()
            await settle()
            assert not pending.answer.done()
            if catches_up:
                given.store.open.set()
            else:
                await given.server.clock.advance(FRESH_WITHIN)
            answer = await pending.finish()
            assert refused(answer) == ((401, "Unauthorized", None) if catches_up else (503, BEHIND, "1"))

    async def given_end(server: Server) -> None:
        """End nothing: another server does."""

    asyncio.run(body())


def test_a_write_that_waited_in_vain_for_its_own_read_stores_nothing() -> None:
    async def body() -> None:
        async with scene() as given:
            await given.revoke_elsewhere()
            answer = given.send("POST", CONFIGMAPS, {"metadata": {"name": "late"}})
            for _ in range(2):  # admission reads first, then the commit
                await settle()
                assert not answer.done()
                await given.server.clock.advance(FRESH_WITHIN)
            assert refused(await answer) == (503, BEHIND, "1")

    asyncio.run(body())


@pytest.mark.parametrize("path", ["/livez", "/livez/ping", "/healthz", "/readyz"])
def test_health_is_answered_by_views_of_any_age(path: str) -> None:
    async def body() -> None:
        async with scene() as given:
            await given.revoke_elsewhere()
            await given.server.clock.advance(LATER)
            asked = given.store.asked
            assert (await given.send("GET", path, None)).text.startswith("ok")
            assert given.store.asked - asked <= 1, "only the check of the store itself asks"

    asyncio.run(body())


def test_anonymous_discovery_goes_on_while_views_lag() -> None:
    async def body() -> None:
        async with scene() as given:
            await given.revoke_elsewhere()
            await given.server.clock.advance(LATER)
            assert (await given.server.get("/version", via=connection())).status == 200
            reading = asyncio.ensure_future(given.server.get(f"{CONFIGMAPS}/cluster-info", via=connection()))
            await settle()
            await given.server.clock.advance(FRESH_WITHIN)
            assert (await reading).status in (200, 404)

    asyncio.run(body())


def test_a_malformed_credential_is_401_while_views_lag() -> None:
    async def body() -> None:
        async with scene() as given:
            await given.revoke_elsewhere()
            await given.server.clock.advance(LATER)
            answer = asyncio.ensure_future(given.server.get("/api", token="not-a-token"))
            await settle()
            await given.server.clock.advance(FRESH_WITHIN)
            assert (await answer).status == 401

    asyncio.run(body())


def test_a_busy_server_asks_the_store_once_in_a_maximum_age() -> None:
    async def body() -> None:
        async with scene() as given:
            await given.server.clock.advance(LATER)
            asked = given.store.asked
            for _ in range(10):
                assert (await given.send("GET", "/api", None)).status == 200
            assert given.store.asked == asked + 1
            await given.server.clock.advance(LATER)
            assert (await given.send("GET", "/api", None)).status == 200
            assert given.store.asked == asked + 2

    asyncio.run(body())
