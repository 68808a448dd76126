"""A cluster is saved while it serves, goes on, is lost, and is restored: watches get 410, and no revision comes again.

Then it moves to another database file. Members keep their credentials throughout.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path

import pytest

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.errors import ApiError, ExpiredError
from tests.support.commandline import CommandLine, mooring
from tests.support.killable import KillableServer

__all__ = ["mooring"]


def config_map(name: str) -> Obj:
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "namespace": "default"}}


def version(obj: Obj) -> int:
    return int(obj["metadata"]["resourceVersion"])


async def names(client: ClusterClient) -> set[str]:
    return {obj["metadata"]["name"] for obj in (await client.list("configmaps", "default")).items}


async def check_that_a_watch_expires(client: ClusterClient, resource_version: int) -> None:
    async with aclosing(
        client.watch("configmaps", "default", resource_version=str(resource_version), seconds=30)
    ) as events:
        with pytest.raises(ExpiredError):
            await anext(events)


@pytest.mark.crash
def test_a_cluster_is_restored_and_moved(tmp_path: Path, mooring: CommandLine) -> None:
    server = KillableServer(tmp_path / "data")
    snapshot, database = tmp_path / "a.snapshot", server.data_dir / "mooring.db"

    def run(*arguments: str) -> Obj:
        document: Obj = json.loads(mooring.done(*arguments, "-o", "json"))
        return document

    async def serve_and_save() -> tuple[int, int]:
        server.launch()
        await server.ready()
        async with server.client() as client:
            before = await client.create("configmaps", config_map("before"))
            saved = await asyncio.to_thread(run, "snapshot", "save", str(snapshot), "--data-dir", str(server.data_dir))
            assert saved["revision"] >= version(before)
            after = await client.create("configmaps", config_map("after"))
            refused = await asyncio.to_thread(
                mooring, "datastore", "migrate", f"sqlite:{database}", f"sqlite:{tmp_path}/b.db"
            )
            assert "is in use: stop every server" in refused.err
            refused = await asyncio.to_thread(
                mooring, "snapshot", "restore", str(snapshot), "--data-dir", str(server.data_dir)
            )
            assert "is used by the process" in refused.err
            assert await names(client) >= {"before", "after"}
        await server.stop()
        return version(before), version(after)

    async def serve_restored(saved: int, lost: int, *more: int) -> int:
        server.launch()
        await server.ready()
        async with server.client() as client:
            for resource_version in (saved, lost, *more):
                await check_that_a_watch_expires(client, resource_version)
            assert "after" not in await names(client)
            restored = await client.get("configmaps", "before", "default")
            assert version(restored) > lost
            with pytest.raises(ApiError):  # a write on the ground of what was read before
                await client.update(
                    "configmaps", restored | {"metadata": restored["metadata"] | {"resourceVersion": str(saved)}}
                )
            newest = version(await client.create("configmaps", config_map(f"later-{lost}")))
            assert newest > lost
            async with aclosing(
                client.watch("configmaps", "default", resource_version=str(newest - 1), seconds=30)
            ) as events:
                assert (await anext(events)).object["metadata"]["name"] == f"later-{lost}"
        await server.stop()
        return newest

    try:
        saved, lost = asyncio.run(serve_and_save())
        for path in server.data_dir.glob("mooring.db*"):
            path.rename(tmp_path / path.name)
        restored = run("snapshot", "restore", str(snapshot), "--data-dir", str(server.data_dir))
        assert restored["revision"] > restored["snapshotRevision"] + 1_000_000
        newest = asyncio.run(serve_restored(saved, lost, lost + 1000))

        moved = run("datastore", "migrate", f"sqlite:{database}", f"sqlite:{tmp_path}/moved.db")
        database.unlink()
        (tmp_path / "moved.db").rename(database)
        later = asyncio.run(serve_restored(newest - 1, newest))
        assert later > moved["revision"] > newest
    finally:
        server.kill()
