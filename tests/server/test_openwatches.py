"""Watches that are open end with their credential and with their right, whatever authenticated them.

Source: docs/adr/0077-watches-end-with-their-right.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from mooring.authn.custom import CustomAuthenticator
from mooring.authn.verdictcache import VerdictCache
from mooring.clock import JUMP_SECONDS
from mooring.identity import NODES
from mooring.server.authentication.recheck import WATCHED_FOR
from mooring.server.openwatches import PAUSE_SECONDS
from tests.server.test_recheck import BINDINGS, ENDS, SECRETS, Directory, Scenario, an_expired_certificate, scene
from tests.support.manualclock import settle
from tests.support.serverroom import Server, Stream, connection, in_server

ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
WATCH = f"{SECRETS}?watch=1&resourceVersion=0"
RULE = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["watch"]}
READER = {"metadata": {"name": "reader"}, "rules": [RULE]}
ROLE = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"}
BOUND = {
    "metadata": {"name": "jane-reads"},
    "roleRef": ROLE,
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
}


@pytest.mark.parametrize("scenario", [one for one in ENDS if one is not an_expired_certificate])
def test_a_watch_ends_with_its_credential(scenario: Scenario, tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, scenario) as (server, offer):
            watch = await server.follow(WATCH, token=offer.token, via=offer.via, headers=offer.headers)
            other = await server.follow(WATCH)
            assert (watch.status, watch.ended) == (200, False), "the credential was good"
            await offer.end(server)
            await server.clock.advance(JUMP_SECONDS if "expired" in scenario.__name__ else PAUSE_SECONDS)
            assert watch.ended
            before = watch.raw
            await server.create("secrets", {"metadata": {"name": "later"}}, namespace="kube-system")
            await settle()
            assert watch.raw == before
            if "expired" not in scenario.__name__:
                assert "ADDED later" in other.event_names, "the watch of another user goes on"
            await other.end()

    asyncio.run(body())


def test_a_watch_with_a_verdict_that_nobody_remembers_ends_after_its_time(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, an_expired_certificate) as (server, _):
            cache = VerdictCache(bytes(32), timedelta(0))
            outside = CustomAuthenticator("directory", Directory().authenticate, timedelta(seconds=5), cache)
            server.pipeline._authenticators = (*server.pipeline._authenticators, outside)
            watch = await server.follow(f"{WATCH}&timeoutSeconds=999999", token="ticket")
            assert watch.status == 200
            await server.clock.advance(WATCHED_FOR.total_seconds() - JUMP_SECONDS)
            assert not watch.ended
            await server.clock.advance(JUMP_SECONDS * 2)
            assert watch.ended

    asyncio.run(body())


async def without_the_binding(server: Server) -> None:
    assert (await server.call("DELETE", f"{BINDINGS}/jane-reads")).status == 200


async def without_the_role(server: Server) -> None:
    assert (await server.call("DELETE", f"{ROLES}/reader")).status == 200


async def with_less_in_the_role(server: Server) -> None:
    rules = [{**RULE, "resources": ["pods"]}]
    assert (await server.call("PUT", f"{ROLES}/reader", body={**READER, "rules": rules})).status == 200


@pytest.mark.parametrize("take", [without_the_binding, without_the_role, with_less_in_the_role])
@in_server
async def test_a_watch_ends_with_its_right(server: Server, take: Callable[[Server], Awaitable[None]]) -> None:
    jane = await bound(server)
    other = await server.follow(WATCH)
    await take(server)
    await server.clock.advance(PAUSE_SECONDS)
    assert (jane.ended, other.ended) == (True, False)
    await other.end()


async def bound(server: Server, **how: object) -> Stream:
    await server.create("clusterroles", READER)
    await server.create("clusterrolebindings", BOUND)
    watch = await server.follow(WATCH, **{"via": server.user("jane"), **how})
    assert (watch.status, watch.ended) == (200, False)
    return watch


@in_server
async def test_a_watch_goes_on_through_changes_that_leave_its_right(server: Server) -> None:
    watch = await bound(server)
    assert (await server.call("PUT", f"{ROLES}/reader", body=READER)).status == 200
    await server.create("clusterrolebindings", {**BOUND, "metadata": {"name": "again"}})
    await without_the_binding(server)
    await server.clock.advance(JUMP_SECONDS)
    assert not watch.ended
    await watch.end()


@in_server
async def test_a_watch_ends_with_the_right_to_impersonate(server: Server) -> None:
    rule = {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["jane"]}
    await server.create("clusterroles", {"metadata": {"name": "as-jane"}, "rules": [rule]})
    john = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "john"}
    role = {**ROLE, "name": "as-jane"}
    await server.create("clusterrolebindings", {"metadata": {"name": "john"}, "roleRef": role, "subjects": [john]})
    watch = await bound(server, via=server.user("john"), headers=(("Impersonate-User", "jane"),))
    assert (await server.call("DELETE", f"{BINDINGS}/john")).status == 200
    await server.clock.advance(PAUSE_SECONDS)
    assert watch.ended


@in_server
async def test_a_node_watches_a_secret_for_as_long_as_a_pod_of_it_refers_to_it(server: Server) -> None:
    await server.create("nodes", {"metadata": {"name": "n1"}})
    await server.create("serviceaccounts", {"metadata": {"name": "default"}})
    volume = {"name": "v", "secret": {"secretName": "shown"}}
    spec = {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}], "volumes": [volume]}
    made = await server.post("/api/v1/namespaces/default/pods", {"metadata": {"name": "p"}, "spec": spec})
    assert made.status == 201, made.text
    target = "/api/v1/namespaces/default/secrets?watch=1&fieldSelector=metadata.name%3Dshown"
    watch = await server.follow(target, via=connection([server.ca.client("system:node:n1", NODES).der]))
    assert (watch.status, watch.ended) == (200, False)
    gone = await server.call("DELETE", "/api/v1/namespaces/default/pods/p?gracePeriodSeconds=0")
    assert gone.status == 200, gone.text
    await server.clock.advance(PAUSE_SECONDS)
    assert watch.ended


@in_server
async def test_the_operator_sees_why_a_watch_ended(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    await bound(server)
    with caplog.at_level("INFO", logger="mooring.server"):
        await without_the_binding(server)
        await server.clock.advance(PAUSE_SECONDS)
    assert 'the watch of jane ends: secrets is forbidden: User "jane" cannot watch resource "secrets"' in caplog.text
