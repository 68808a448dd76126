"""SIGTERM while clients work (`mooring.controlplane.serverprocess`, `mooring.controlplane.assemble`).

Invariants: requests under way are answered, watches end as after their timeout, the process exits with 0, the Lease is released so
that the next start leads at once; a second SIGTERM ends a drain that waits for a client.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.client.http import tls
from mooring.client.kubeconfigfiles import load
from mooring.errors import PeerError
from tests.support.killable import KillableServer, history, lease_held_by

WRITERS = 8
WATCHES = 5
LARGE = 20
"""Objects of nearly a megabyte in one list: more than the socket buffers hold while a client does not read."""
PATIENCE = 30.0
ASKED_TWICE = 130
"""Exit status after a second signal."""


def config_map(name: str) -> Obj:
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "namespace": "default"}}


@contextmanager
def fresh(folder: Path) -> Iterator[KillableServer]:
    server = KillableServer(folder / "data")
    try:
        yield server
    except BaseException:
        print(server.log[-4000:])  # noqa: T201 - shown with the failure
        raise
    finally:
        server.kill()


async def connected(server: KillableServer, limit: int = 1 << 16) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect as the administrator; asyncio buffers at most about `limit` bytes ahead."""
    selected = load(str(server.data_dir / "admin.conf"))
    context = tls.trusting(selected.cluster.ca_pem)
    assert selected.user.key is not None
    tls.present(context, selected.user.certificate_pem, selected.user.key)
    return await asyncio.open_connection("127.0.0.1", server.port, ssl=context, limit=limit)


class SlowRequest:
    """A create that sends its body in two halves."""

    def __init__(self, name: str) -> None:
        self._body = json.dumps(config_map(name)).encode()

    async def begin(self, server: KillableServer) -> None:
        self._reader, self._writer = await connected(server)
        self._writer.write(
            b"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(self._body), self._body[:10])
        )
        await self._writer.drain()

    async def finish(self) -> bytes:
        """Send the rest. Return the whole answer; the server closes after it."""
        self._writer.write(self._body[10:])
        return await self._reader.read()

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


class Load:
    """Writers that write until the server is gone, their acknowledged writes, and watches."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self.acknowledged: dict[str, str] = {}
        self.seen: list[list[str]] = [[] for _ in range(WATCHES)]

    async def write(self, writer: int) -> None:
        with suppress(PeerError):
            for n in itertools.count():
                made = await self._client.create("configmaps", config_map(f"w{writer}-{n}"))
                self.acknowledged[made["metadata"]["name"]] = made["metadata"]["resourceVersion"]

    async def watch(self, seen: list[str], revision: str) -> None:
        """Append each event's name to `seen`; return when the watch ends cleanly."""
        async for event in self._client.watch("configmaps", "default", resource_version=revision):
            if event.type == "ADDED":
                seen += [event.object["metadata"]["name"]]

    async def until(self, count: int) -> None:
        while len(self.acknowledged) < count:
            await asyncio.sleep(0.005)


@pytest.mark.crash
def test_sigterm_under_load_finishes_what_is_under_way_and_hands_over(tmp_path: Path) -> None:
    async def scenario(server: KillableServer) -> None:
        server.launch()
        await server.ready()
        slow = SlowRequest("slow")
        async with server.client() as writing, server.client() as watching:
            load = Load(writing)
            load_watching = Load(watching)
            revision = (await writing.list("configmaps", "default")).resource_version
            watches = [asyncio.create_task(load_watching.watch(seen, revision)) for seen in load_watching.seen]
            writers = [asyncio.create_task(load.write(n)) for n in range(WRITERS)]
            await lease_held_by(watching, server.identity)
            await slow.begin(server)
            await load.until(200)
            process = server.send_sigterm()
            while "draining" not in server.log:
                await asyncio.sleep(0.01)
            assert process.poll() is None, "it waits for the request under way"
            answer = await slow.finish()
            assert answer.startswith(b"HTTP/1.1 201 "), answer[:300]
            await slow.close()
            assert await asyncio.to_thread(process.wait, PATIENCE) == 0
            await asyncio.gather(*watches)
            await asyncio.gather(*writers)
            assert "Traceback" not in server.log

        changes = await history(server.data_dir / "mooring.db")
        stored = {
            change.key.rpartition("/")[2]: str(change.revision)
            for change in changes
            if change.entry and change.entry.created == change.revision
        }
        assert "slow" in stored
        written = {name: revision for name, revision in stored.items() if name.startswith("w")}
        assert load.acknowledged == written, "what was done was acknowledged, what was acknowledged was done"
        order = [change.key.rpartition("/")[2] for change in changes if "/configmaps/default/" in change.key]
        for seen in load_watching.seen:
            assert len(seen) > 100
            events = [name for name in seen if name != "kube-root-ca.crt"]
            assert events == [name for name in order if name != "kube-root-ca.crt"][: len(events)], "in order, no gap"
        lease = [change.entry for change in changes if change.key.endswith("/mooring-controllers")][-1]
        assert lease is not None
        released = json.loads(lease.value)["spec"]
        assert released["holderIdentity"] == ""

        server.launch()
        await server.ready()
        async with server.client() as admin:
            spec = await lease_held_by(admin, server.identity)
            assert spec["leaseTransitions"] == released["leaseTransitions"] + 1
        assert await server.stop() == 0

    with fresh(tmp_path) as server:
        asyncio.run(scenario(server))


@pytest.mark.crash
def test_a_large_answer_under_way_arrives_whole(tmp_path: Path) -> None:
    async def scenario(server: KillableServer) -> None:
        server.launch()
        await server.ready()
        async with server.client() as admin:
            for n in range(LARGE):
                await admin.create("configmaps", config_map(f"large-{n}") | {"data": {"text": "x" * 900_000}})
        reader, writer = await connected(server)
        writer.write(b"GET /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: x\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        process = server.send_sigterm()
        while "draining" not in server.log:
            await asyncio.sleep(0.01)
        body = await reader.read()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        assert b"content-length: %d\r\n" % len(body) in head
        assert len(body) > LARGE * 900_000
        assert await asyncio.to_thread(process.wait, PATIENCE) == 0

    with fresh(tmp_path) as server:
        asyncio.run(scenario(server))


class StalledWatch:
    """A client that starts a watch and never reads."""

    async def begin(self, server: KillableServer) -> None:
        self._reader, self._writer = await connected(server, limit=1)
        self._writer.write(b"GET /api/v1/namespaces/default/configmaps?watch=true HTTP/1.1\r\nhost: x\r\n\r\n")
        await self._writer.drain()

    async def close(self) -> None:
        self._writer.transport.abort()
        with suppress(OSError):
            await self._writer.wait_closed()


@pytest.mark.crash
def test_a_watch_whose_client_does_not_read_does_not_hold_the_stop_up(tmp_path: Path) -> None:
    async def scenario(server: KillableServer) -> None:
        server.launch()
        await server.ready()
        stalled = StalledWatch()
        await stalled.begin(server)
        async with server.client() as admin:
            large = config_map("large") | {"data": {"text": "x" * 900_000}}
            await admin.create("configmaps", large)
            for n in range(12):  # more than the socket buffers hold
                await admin.patch("configmaps", "large", {"data": {"n": str(n)}}, "default")
        process = server.send_sigterm()
        assert await asyncio.to_thread(process.wait, PATIENCE) == 0
        await stalled.close()

    with fresh(tmp_path) as server:
        asyncio.run(scenario(server))


@pytest.mark.crash
def test_a_second_sigterm_ends_a_drain_that_waits(tmp_path: Path) -> None:
    async def scenario(server: KillableServer) -> None:
        server.launch()
        await server.ready()
        async with server.client() as admin:
            made = await admin.create("configmaps", config_map("kept"))
        slow = SlowRequest("never-finished")
        await slow.begin(server)
        process = server.send_sigterm()
        while "draining" not in server.log:
            await asyncio.sleep(0.01)
        with pytest.raises(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, 0.3)  # it would wait for the body much longer
        process.terminate()
        assert await asyncio.to_thread(process.wait, PATIENCE / 6) == ASKED_TWICE
        await slow.close()

        server.launch()
        await server.ready()
        async with server.client() as admin:
            assert (await admin.get("configmaps", "kept", "default"))["metadata"] == made["metadata"]
            await lease_held_by(admin, server.identity)
        assert await server.stop() == 0

    with fresh(tmp_path) as server:
        asyncio.run(scenario(server))
