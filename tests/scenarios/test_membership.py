"""A Node is deleted: the machine loses its open connection and its way in, through `kill -9`, until it joins again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mooring.client.cluster import ClusterClient
from mooring.errors import ForbiddenError, MooringError, UnauthorizedError
from tests.support.liveserver import LiveServer, start_server
from tests.support.nodenames import Machine, conditions

IDENTITIES = "nodeidentities"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    server = start_server(tmp_path / "data")
    yield server
    server.stop()


async def watch_own_node(client: ClusterClient, name: str, begun: asyncio.Event) -> None:
    """Follow the Node until the server ends the watch."""
    events = client.watch("nodes", resource_version="", field_selector=f"metadata.name={name}", seconds=600)
    async for _ in events:
        begun.set()


@pytest.mark.crash
def test_the_deletion_of_a_node_ends_the_membership(server: LiveServer) -> None:
    token = server.create_token()
    machine, other = Machine(server, "worker"), Machine(server, "other")

    async def take_out() -> None:
        for one in (machine, other):
            await one.join(token)
            await one.register()
        async with server.client() as admin, machine.client() as connection, other.client() as beside:
            begun = asyncio.Event()
            watch = asyncio.create_task(watch_own_node(connection, "worker", begun))
            await begun.wait()
            await admin.delete("nodes", "worker")
            async with asyncio.timeout(30):
                with suppress(MooringError):
                    await watch
            with pytest.raises(UnauthorizedError):
                await connection.get("nodes", "worker")
            await beside.get("nodes", "other")

    async def be_refused() -> None:
        with pytest.raises(UnauthorizedError):
            await machine.register()
        await other.own_node()

    async def join_again() -> None:
        before = machine.certificate
        await machine.join(token)  # with the same key
        assert machine.certificate != before
        await machine.register()
        await machine.own_node()
        async with server.client() as admin:
            spec = (await admin.get(IDENTITIES, "worker"))["spec"]
            assert [key["publicKey"] for key in spec["keys"]] == [machine.public_key]
            assert "nodeUID" not in spec
            deletion = asyncio.create_task(admin.delete("nodes", "worker"))
            while "nodeUID" not in (await admin.get(IDENTITIES, "worker"))["spec"]:
                await asyncio.sleep(0)
            server.kill()
            await asyncio.gather(deletion, return_exceptions=True)

    async def see_a_true_state() -> None:
        """The Node exists and the machine is a member, or neither."""
        async with server.client() as admin:
            exists = bool((await admin.list("nodes", field_selector="metadata.name=worker")).items)
            if exists:
                await machine.own_node()
                await admin.delete("nodes", "worker")
            with pytest.raises(UnauthorizedError):
                await machine.own_node()
            successor = Machine(server, "worker")
            await successor.join(token)
            await successor.register()

    asyncio.run(take_out())
    server.kill()
    server.restart()
    asyncio.run(be_refused())
    asyncio.run(join_again())
    server.restart()
    asyncio.run(see_a_true_state())


def test_a_finalizer_does_not_prolong_a_membership(server: LiveServer) -> None:
    token = server.create_token()
    machine = Machine(server, "worker")
    held = {"metadata": {"finalizers": ["example.com/hold"]}}

    async def scenario() -> None:
        await machine.join(token)
        await machine.register()
        async with server.client() as admin, machine.client() as connection:
            for subresource in ("", "status"):
                with suppress(ForbiddenError):  # the status ignores metadata
                    await connection.patch("nodes", "worker", held, subresource=subresource)
            assert "finalizers" not in (await admin.get("nodes", "worker"))["metadata"]
            await admin.patch("nodes", "worker", held)
            await admin.delete("nodes", "worker")
            assert (await admin.get("nodes", "worker"))["metadata"]["deletionTimestamp"]
            with pytest.raises(UnauthorizedError):
                await connection.get("nodes", "worker")
            successor = Machine(server, "worker")
            waiting = await successor.request(token)
            while not await conditions(admin, waiting):
                await asyncio.sleep(0.02)
            assert await conditions(admin, waiting) == {"NeedsApproval": "NodeTerminating"}
            await admin.patch("nodes", "worker", {"metadata": {"finalizers": None}})
            with pytest.raises(UnauthorizedError):
                await machine.own_node()

    asyncio.run(scenario())


def test_a_machine_creates_its_node_again_where_the_setting_says_so(tmp_path: Path) -> None:
    server = start_server(tmp_path / "data", "--node-deletion=reregisters")
    token = server.create_token()
    machine, thief = Machine(server, "worker"), Machine(server, "worker")

    async def scenario() -> None:
        await machine.join(token)
        await machine.register()
        async with server.client() as admin:
            await admin.delete("nodes", "worker")
            await machine.register()
            spec = (await admin.get(IDENTITIES, "worker"))["spec"]
            assert [key["publicKey"] for key in spec["keys"]] == [machine.public_key]
            await admin.delete("nodes", "worker")
            await thief.join(token)
            with pytest.raises(UnauthorizedError):
                await machine.register()

    try:
        asyncio.run(scenario())
    finally:
        server.stop()
