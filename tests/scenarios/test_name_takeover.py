"""A token holder wants the name of a live node: its request is held, through `kill -9`, until a person or a token decides."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.errors import UnauthorizedError
from mooring.trust.bootstraptoken.restrictions import NODE_NAME
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE, secret_name
from tests.support.liveserver import LiveServer, start_server
from tests.support.nodenames import REQUESTS, Machine, approve, conditions

IDENTITIES = "nodeidentities"
HELD = {"NeedsApproval": "NodeNameTaken"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    server = start_server(tmp_path / "data")
    yield server
    server.stop()


async def keys(admin: ClusterClient) -> list[str]:
    return [key["publicKey"] for key in (await admin.get(IDENTITIES, "worker"))["spec"]["keys"]]


@pytest.mark.crash
def test_a_token_does_not_take_over_the_name_of_a_live_node(server: LiveServer) -> None:
    token = server.create_token()
    theft: list[Obj] = []
    victim, thief, heir = Machine(server, "worker"), Machine(server, "worker"), Machine(server, "worker")

    async def victim_is_accepted() -> bool:
        try:
            return bool(await victim.own_node())
        except UnauthorizedError:
            return False

    async def attack() -> list[dict[str, str]]:
        await victim.join(token)
        await victim.register()
        async with server.client() as admin:
            (entry,) = (await admin.get(IDENTITIES, "worker"))["spec"]["keys"]
            assert entry["publicKey"] == victim.public_key
            made = [await thief.request(token), await Machine(server, "WORKER").request(token)]
            while not all([await conditions(admin, one) for one in made]):
                await asyncio.sleep(0.02)
            theft.append(made[0])
            return [await conditions(admin, one) for one in made]

    assert asyncio.run(attack()) == [HELD, {"Denied": "NodeNameInvalid"}]
    server.kill()
    server.restart()
    assert asyncio.run(victim_is_accepted())

    async def decide() -> None:
        async with server.client() as admin, victim.client() as connection:
            assert await conditions(admin, theft[0]) == HELD
            assert await keys(admin) == [victim.public_key]
            await connection.get("nodes", "worker")
            await approve(admin, theft[0])
            await thief.receive(theft[0])
            assert await keys(admin) == [thief.public_key]
            with pytest.raises(UnauthorizedError):
                await connection.get("nodes", "worker")
            assert (await thief.own_node())["metadata"]["name"] == "worker"

            named = await server.create_token_in(admin)
            annotation = {"metadata": {"annotations": {NODE_NAME: "worker"}}}
            await admin.patch("secrets", secret_name(named.id), annotation, NAMESPACE)
            await heir.join(named)
            assert await keys(admin) == [heir.public_key]
            with pytest.raises(UnauthorizedError):
                await thief.own_node()

    asyncio.run(decide())
    assert not asyncio.run(victim_is_accepted())


def test_a_stranger_who_waits_gains_nothing_by_the_deletion_of_a_node(server: LiveServer) -> None:
    """The machine was replaced: its successor asks after the deletion, and the stranger has asked before."""
    token = server.create_token()
    victim, stranger, successor = (Machine(server, "worker") for _ in range(3))

    async def scenario() -> None:
        await victim.join(token)
        await victim.register()
        async with server.client() as admin:
            waiting = await stranger.request(token)
            while not await conditions(admin, waiting):
                await asyncio.sleep(0.02)
            assert await conditions(admin, waiting) == HELD
            await admin.delete("nodes", "worker")
            await successor.join(token)
            assert await conditions(admin, waiting) == HELD
            assert await keys(admin) == [successor.public_key]
            await admin.delete("nodeidentities", "worker")
            await admin.patch(REQUESTS, waiting["metadata"]["name"], {"metadata": {"labels": {"planned": "again"}}})
            other = Machine(server, "other")
            await other.join(token)  # the approver has seen the change
            assert await conditions(admin, waiting) == HELD
            await approve(admin, waiting)
            await stranger.receive(waiting)

    asyncio.run(scenario())
