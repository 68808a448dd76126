"""Servers on a disk that reports errors, and on a database that is deleted or replaced while it is open (docs/faults.md)."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.client.http.requests import fetch
from mooring.client.kubeconfigfiles import load
from mooring.clock import SystemClock
from mooring.errors import (
    InternalServerError,
    MooringError,
    PeerError,
    RequestTimeoutError,
    ServiceUnavailableError,
    StorageReadError,
)
from mooring.trust.httpexchange import UNVERIFIED, HttpRequest, HttpResponse, Trust
from tests.support.commandline import process
from tests.support.faultlib.rules import Faults
from tests.support.killable import KillableServer

PATIENCE = 60.0


def config_map(name: str, value: str = "1") -> Obj:
    data = {"value": value}
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "namespace": "default"}, "data": data}


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    return Faults(tmp_path / "faults")


@contextmanager
def fresh(folder: Path, *flags: str, environment: Mapping[str, str] | None = None) -> Iterator[KillableServer]:
    server = KillableServer(folder / "data", flags=flags, environment=environment or {})
    try:
        yield server
    except BaseException:
        print(server.log[-4000:])  # noqa: T201 - shown with the failure
        raise
    finally:
        server.kill()


async def status(server: KillableServer, path: str) -> int:
    answer = await fetch(HttpRequest(UNVERIFIED, url=f"https://{server.endpoint}/{path}"), SystemClock())
    assert isinstance(answer, HttpResponse), answer
    return answer.status


async def ended(server: KillableServer) -> int:
    assert server.process is not None
    code = await asyncio.to_thread(server.process.wait, PATIENCE)
    server.process = None
    return code


async def logged(server: KillableServer, text: str) -> None:
    """Wait until the server has logged `text`."""
    async with asyncio.timeout(PATIENCE):
        while text not in server.log:
            await asyncio.sleep(0.02)


async def meets_the_error(client: ClusterClient, faults: Faults, name: str) -> bool:
    """Let the next fsync of the write-ahead log fail, and create an object. Return whether its commit met the error: one of the
    server itself, or of another worker, may have come first."""
    faults.fail("fsync", "*/mooring.db-wal", errno.EIO, times=1)
    try:
        await client.create("configmaps", config_map(name))
    except RequestTimeoutError:
        return True
    except (ServiceUnavailableError, PeerError):
        pass
    return False


def test_a_commit_whose_fsync_fails_is_answered_504_and_ends_the_server_with_an_error(
    tmp_path: Path, faults: Faults
) -> None:
    async def scenario() -> None:
        with fresh(tmp_path, environment=faults.environment) as server:
            answered = 0
            for number in range(5):
                server.launch()
                await server.ready()
                async with server.client() as client:
                    await client.create("configmaps", config_map(f"kept-{number}"))
                    if await meets_the_error(client, faults, f"unknown-{number}"):
                        answered += 1
                        with pytest.raises((ServiceUnavailableError, PeerError)):
                            await client.create("configmaps", config_map("refused"))
                assert await ended(server) == 1
                if answered:
                    break
            assert answered
            assert server.log.count(" CRITICAL ") == number + 1
            assert "Traceback" not in server.log
            last = server.log.splitlines()[-1]
            assert last.startswith("Error: a commit to the database file")
            assert last.endswith("check the disk and the log of the kernel, and start it again")
            server.launch()
            await server.ready()
            async with server.client() as client:
                items = {one["metadata"]["name"] for one in (await client.list("configmaps", "default")).items}
                assert {f"kept-{one}" for one in range(number + 1)} <= items
                assert "refused" not in items
                await client.create("configmaps", config_map("later"))
            assert await server.stop() == 0

    asyncio.run(scenario())


def test_of_several_workers_the_one_whose_commit_failed_is_replaced(tmp_path: Path, faults: Faults) -> None:
    async def scenario() -> None:
        with fresh(tmp_path, "--workers", "2", environment=faults.environment) as server:
            server.launch()
            await logged(server, "with 2 workers")  # the start of the second would meet the error
            await server.ready()
            async with server.client() as client:
                await client.create("configmaps", config_map("kept"))
                await meets_the_error(client, faults, "unknown")
            await logged(server, "may be stored nevertheless: this process ends; check")
            await logged(server, " ended: ")
            for number in range(1000):
                try:
                    async with server.client() as client:
                        await client.create("configmaps", config_map(f"later-{number}"))
                        assert (await client.get("configmaps", "kept", "default"))["data"] == {"value": "1"}
                    break
                except MooringError:  # the worker that has failed drains
                    await asyncio.sleep(0.02)
            assert await server.stop() == 0

    asyncio.run(scenario())


def test_a_database_that_is_deleted_while_it_is_open_is_noticed_and_can_be_put_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        with fresh(tmp_path) as server:
            server.launch()
            await server.ready()
            database, aside = server.data_dir / "mooring.db", tmp_path / "aside.db"
            saved = process("snapshot", "save", str(tmp_path / "one.snapshot"), "--data-dir", str(server.data_dir))
            assert saved.code == 0, saved.err
            async with server.client() as client:
                await client.create("configmaps", config_map("kept"))
                database.rename(aside)
                with pytest.raises(ServiceUnavailableError):
                    await client.create("configmaps", config_map("lost"))
                assert await status(server, "livez") == 500
                assert (await client.get("configmaps", "kept", "default"))["data"] == {"value": "1"}
                [line] = [line for line in server.log.splitlines() if " CRITICAL " in line]
                assert f"the file {database} was deleted, replaced or cut while it is open" in line
                assert line.endswith("put back the file that was there, or stop the server and restore a snapshot")

                restored = process(
                    "snapshot", "restore", str(tmp_path / "one.snapshot"), "--data-dir", str(server.data_dir)
                )
                assert restored.code != 0
                assert "is used by the process" in restored.err
                assert restored.err.count("\n") == 1
                assert not database.exists()

                shutil.copy(aside, database)  # the same bytes, another file
                with pytest.raises(ServiceUnavailableError):
                    await client.create("configmaps", config_map("lost"))
                database.unlink()
                aside.rename(database)
                await client.create("configmaps", config_map("later"))
                assert await status(server, "livez") == 200
            assert await server.stop() == 0
            server.launch()
            await server.ready()
            async with server.client() as client:
                items = {one["metadata"]["name"] for one in (await client.list("configmaps", "default")).items}
                assert {"kept", "later"} <= items
                assert "lost" not in items

    asyncio.run(scenario())


def test_an_object_whose_bytes_changed_is_refused_by_its_name_and_can_be_deleted_on_purpose(tmp_path: Path) -> None:
    async def scenario() -> None:
        with fresh(tmp_path) as server:
            server.launch()
            await server.ready()
            async with server.client() as client:
                await client.create("configmaps", config_map("changed", "recognisable"))
                await client.create("configmaps", config_map("whole"))
            assert await server.stop() == 0
            database = server.data_dir / "mooring.db"
            data = database.read_bytes()
            assert data.count(b'"value":"recognisable"') == 1
            database.write_bytes(data.replace(b'"value":"recognisable"', b'"value":"Recognisable"'))
            server.launch()
            await server.ready()
            async with server.client() as client:
                assert (await client.get("configmaps", "whole", "default"))["data"] == {"value": "1"}
                for refused in (client.get("configmaps", "changed", "default"), client.list("configmaps", "default")):
                    with pytest.raises((InternalServerError, StorageReadError), match="default/changed"):
                        await refused
                assert b"[!]unreadable-objects" in await client.read("/readyz?verbose")
                metrics = await client.read("/metrics")
                assert b"\nmooring_unreadable_objects 1.0\n" in metrics
                while b"\nmooring_storage_damaged_records 0.0\n" in metrics:
                    metrics = await client.read("/metrics")
                    await asyncio.sleep(0.02)
                assert b"[!]etcd-alarms" in await client.read("/readyz?verbose")
                assert server.log.count("have changed on the disk (damaged: 1): `mooring store verify` names them") == 1
                found = process("store", "verify", str(server.data_dir))
                assert found.code == 1
                assert "/registry/configmaps/default/changed" in found.out
                outcome = process(
                    "snapshot", "save", str(tmp_path / "one.snapshot"), "--data-dir", str(server.data_dir)
                )
                assert outcome.code != 0
                assert "is damaged, and is not copied" in outcome.err
                path = (
                    "api/v1/namespaces/default/configmaps/changed?ignoreStoreReadErrorWithClusterBreakingPotential=true"
                )
                user = load(str(server.data_dir / "super-admin.conf"))
                answer = await fetch(
                    HttpRequest(
                        Trust(user.cluster.ca_pem),
                        "DELETE",
                        f"https://{server.endpoint}/{path}",
                        credentials=user.user,
                    ),
                    SystemClock(),
                )
                assert isinstance(answer, HttpResponse)
                assert answer.status == 200, answer
                names = [one["metadata"]["name"] for one in (await client.list("configmaps", "default")).items]
                assert "changed" not in names
                assert "whole" in names
            assert await server.stop() == 0

    asyncio.run(scenario())
