"""Reviews in a whole server: what they say of a credential or a right that has ended, and of one that nobody can judge now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mooring.identity import NODES
from tests.server.test_recheck import (
    EVERYBODY,
    Offer,
    Scenario,
    Unfinished,
    a_deleted_bootstrap_token,
    a_deleted_secret_of_a_token,
    a_deleted_service_account,
    a_token_that_left_its_file,
    an_expired_bootstrap_token,
    an_expired_service_account_token,
    issued,
    nothing,
    scene,
)
from tests.server.test_unreadable import damage, member
from tests.server.test_viewage import LATER
from tests.server.test_viewage import scene as scene_of_two_servers
from tests.support.manualclock import settle
from tests.support.serverroom import Server, in_server

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS = "/apis/authorization.k8s.io/v1/"
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
ACCOUNT = "/registry/serviceaccounts/default/robot"
POD = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}], "serviceAccountName": "robot"}}
INVALID = {"user": {}, "error": "invalid bearer token"}
NAMESPACE = "/api/v1/namespaces/default"


async def reviewed(server: Server, token: str) -> Any:
    reply = await server.post(TOKEN_REVIEWS, {"spec": {"token": token}})
    assert reply.status == 201, reply.text
    return reply.obj["status"]


async def bound(server: Server, kind: str, name: str, path: str, obj: Any) -> str:
    made = await server.post(path, obj)
    assert made.status == 201, made.text
    reference = {"kind": kind, "apiVersion": "v1", "name": name, "uid": made.obj["metadata"]["uid"]}
    again = await server.post(f"{ACCOUNTS}/robot/token", {"spec": {"boundObjectRef": reference}})
    assert again.status == 201, again.text
    return str(again.obj["status"]["token"])


async def of_a_deleted_pod(server: Server, directory: Path) -> Offer:
    await issued(server)
    token = await bound(server, "Pod", "p", f"{NAMESPACE}/pods", POD)

    async def end(server: Server) -> None:
        assert (await server.call("DELETE", f"{NAMESPACE}/pods/p?gracePeriodSeconds=0")).status == 200
        await settle()

    return Offer(end, token=token)


async def of_a_pod_on_its_way_out(server: Server, directory: Path) -> Offer:
    await issued(server)
    held = {**POD, "metadata": {"name": "p", "finalizers": ["example.com/held"]}}
    token = await bound(server, "Pod", "p", f"{NAMESPACE}/pods", held)

    async def end(server: Server) -> None:
        assert (await server.call("DELETE", f"{NAMESPACE}/pods/p?gracePeriodSeconds=0")).status == 200
        await server.clock.advance(61)

    return Offer(end, token=token)


async def of_a_deleted_node(server: Server, directory: Path) -> Offer:
    await issued(server)
    token = await bound(server, "Node", "n1", "/api/v1/nodes", {"metadata": {"name": "n1"}})

    async def end(server: Server) -> None:
        assert (await server.call("DELETE", "/api/v1/nodes/n1")).status == 200
        await settle()

    return Offer(end, token=token)


async def of_a_node_that_was_made_again(server: Server, directory: Path) -> Offer:
    offer = await of_a_deleted_node(server, directory)
    delete = offer.end

    async def end(server: Server) -> None:
        await delete(server)
        assert (await server.post("/api/v1/nodes", {"metadata": {"name": "n1"}})).status == 201
        await settle()

    return Offer(end, token=offer.token)


TOKENS = (
    a_deleted_bootstrap_token,
    an_expired_bootstrap_token,
    a_deleted_service_account,
    a_deleted_secret_of_a_token,
    an_expired_service_account_token,
    a_token_that_left_its_file,
    of_a_deleted_pod,
    of_a_pod_on_its_way_out,
    of_a_deleted_node,
    of_a_node_that_was_made_again,
)


@pytest.mark.parametrize("scenario", TOKENS)
def test_a_token_that_has_ended_is_invalid_in_its_review(scenario: Scenario, tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, scenario) as (server, offer):
            assert (await reviewed(server, offer.token))["authenticated"] is True
            pending = Unfinished(server, TOKEN_REVIEWS, {"spec": {"token": offer.token}}, Offer(nothing, server.admin))
            await settle()
            await offer.end(server)
            assert (await pending.finish()).obj["status"] == INVALID, "it ended while the body was awaited"
            assert await reviewed(server, offer.token) == INVALID

    asyncio.run(body())


@in_server
async def test_the_review_of_a_token_that_cannot_be_judged_is_503_and_no_verdict(server: Server) -> None:
    token = await issued(server)
    other = await server.bootstrap_token()
    found = await server.storage.get(ACCOUNT)
    assert found is not None
    await server.storage.update(ACCOUNT, found.value[:-3], expected=found.revision)
    await settle()
    refused = await server.post(TOKEN_REVIEWS, {"spec": {"token": token}})
    assert (refused.status, refused.headers["retry-after"]) == (503, "5")
    assert (await server.get("/apis", token=token)).status == 503, "as a request with it"
    assert (await reviewed(server, other))["authenticated"] is True
    assert await reviewed(server, "junk") == INVALID


Ask = tuple[str, Any, Callable[[Any], bool]]
MAY_READ = {"resourceAttributes": {"verb": "get", "resource": "secrets", "namespace": "default"}, "user": "joe"}
JOES = {
    "metadata": {"name": "joe"},
    "roleRef": EVERYBODY["roleRef"],
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name} for name in ("joe", "jane")],
}
BINDING = "/registry/clusterrolebindings/joe"
TOKEN = "/registry/secrets/kube-system/bootstrap-token-abcdef"
ASKED: dict[str, tuple[str, Any, str, Callable[[Any], bool]]] = {
    "a token": (
        TOKEN_REVIEWS,
        {"spec": {"token": "abcdef.0123456789abcdef"}},
        TOKEN,
        lambda status: bool(status.get("authenticated")),
    ),
    "a right": (
        f"{ACCESS}subjectaccessreviews",
        {"spec": MAY_READ},
        BINDING,
        lambda status: bool(status["allowed"]),
    ),
    "the rules of the caller": (
        f"{ACCESS}selfsubjectrulesreviews",
        {"spec": {"namespace": "default"}},
        BINDING,
        lambda status: any("*" in rule["resources"] for rule in status["resourceRules"]),
    ),
}


@pytest.mark.parametrize("case", ASKED)
def test_a_review_that_waited_for_a_thread_is_answered_by_young_views(case: str) -> None:
    path, question, key, is_yes = ASKED[case]

    async def body() -> None:
        async with scene_of_two_servers() as given:
            server = given.server
            await server.bootstrap_token()
            await server.create("clusterrolebindings", JOES)
            await settle()
            if case == "the rules of the caller":
                given.via = server.user("jane")
            assert is_yes((await server.post(path, question, via=given.via)).obj["status"])
            begun, goes_on, work = asyncio.Event(), asyncio.Event(), server.registry.long_work.run

            async def run(*how: Any) -> Any:
                begun.set()
                await goes_on.wait()
                return await work(*how)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(server.registry.long_work, "run", run)
                answer = given.send("POST", path, question)
                await begun.wait()
            given.store.open.clear()
            found = await server.storage.get(key)
            assert found is not None
            await server.storage.delete(key, expected=found.revision)
            await server.clock.advance(LATER)
            goes_on.set()
            await settle()
            assert not answer.done(), "the views lack a write of the store"
            given.store.open.set()
            assert not is_yes((await answer).obj["status"])

    asyncio.run(body())


@in_server
async def test_an_access_review_of_a_node_whose_membership_has_ended_allows_nothing(server: Server) -> None:
    await member(server, "n1")
    spec = {
        "user": "system:node:n1",
        "groups": [NODES],
        "resourceAttributes": {"verb": "get", "resource": "nodes", "name": "n1"},
    }

    async def status() -> Any:
        return (await server.post(f"{ACCESS}subjectaccessreviews", {"spec": spec})).obj["status"]

    assert (await status())["allowed"] is True
    assert (await server.call("DELETE", "/api/v1/nodes/n1")).status == 200
    await settle()
    assert (await status())["allowed"] is False
    await damage(server, "nodeidentities", "n1")
    assert (await status())["allowed"] is False
