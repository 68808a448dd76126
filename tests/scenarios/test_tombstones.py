"""A store that is older than what its server remembers: what had ended stays ended, and nothing is issued until that is settled."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mooring.api.mooring import tombstones
from mooring.api.mooring.certificaterevocation import PLURAL, entry_name
from mooring.client.cluster import ClusterClient
from mooring.controlplane.storewatermark.watermarkfile import FILE_NAME, read_watermark
from mooring.errors import (
    ApiError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    ServiceUnavailableError,
    UnauthorizedError,
)
from mooring.identity import NODES
from mooring.pki.keys import generate_key
from mooring.pki.x509.requests import build_request
from mooring.secret import Secret
from mooring.trust.discovery.errors import NotKubernetesError
from mooring.trust.kubeconfig import KubeconfigUser
from tests.scenarios.test_revocation import jane, user_of
from tests.support.commandline import CommandLine, mooring
from tests.support.killable import KillableServer, client_of

__all__ = ["mooring"]

PATIENCE = 60.0


async def until(look: Callable[[], Awaitable[bool]], why: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await look():
            await asyncio.sleep(0.1)


async def is_shown(client: ClusterClient, line: bytes) -> bool:
    """Return whether /readyz has the line; a busy machine may answer 500 for a moment, because another check fails."""
    try:
        return line in await client.read("/readyz?verbose")
    except NotKubernetesError:
        return False


class Cluster:
    """One server, a revoked administrator, a deleted token, a deleted Node, and a token whose join is used up."""

    def __init__(self, place: Path, run: CommandLine) -> None:
        self.server = KillableServer(place / "data")
        self.copy = place / "copy"
        self.snapshot = place / "a.snapshot"
        self.run = run
        self.user: KubeconfigUser | None = None
        self.gone = self.used = ""

    @property
    def config(self) -> tuple[str, str]:
        return ("--kubeconfig", str(self.server.data_dir / "admin.conf"))

    async def command(self, *arguments: str) -> str:
        return await asyncio.to_thread(self.run.done, *arguments, *self.config)

    async def start(self) -> None:
        self.server.launch()
        await self.server.ready()

    async def prepare(self) -> None:
        """Bring the store to the state of which a copy is kept."""
        await self.start()
        self.user, self.leaf = jane(self.server.data_dir)
        self.gone = (await self.command("token", "create")).strip()
        self.used = (await self.command("token", "create", "--max-joins", "1")).strip()
        async with self.server.client() as client:
            await client.create("nodes", {"metadata": {"name": "n1"}})
        await asyncio.to_thread(
            self.run.done, "snapshot", "save", str(self.snapshot), "--data-dir", str(self.server.data_dir)
        )

    async def end(self) -> None:
        """End what the copy has."""
        async with self.server.client() as client:
            spec = {"serialNumber": f"{self.leaf.serial_number:x}"}
            await client.create(PLURAL, {"metadata": {"name": entry_name(spec)}, "spec": spec})
            await client.delete("nodes", "n1")
        async with self.client(KubeconfigUser("joining", token=Secret(self.used.encode()))) as client:
            await client.create("certificatesigningrequests", request("first", "n2"))
        async with self.server.client() as client:
            await until(lambda: is_issued(client, "first"), "the limited token joins")
        await self.command("token", "delete", self.gone)

    def keep_files(self) -> None:
        shutil.copytree(self.server.data_dir, self.copy, ignore=lambda *_: {FILE_NAME, f"{FILE_NAME}.lock"})

    def put_back(self) -> None:
        for path in self.server.data_dir.glob("mooring.db*"):
            path.unlink()
        for path in self.copy.glob("mooring.db*"):
            shutil.copy(path, self.server.data_dir)

    def client(self, user: KubeconfigUser | None) -> ClusterClient:
        assert user is not None
        return client_of(self.server, (self.server.data_dir / "pki" / "ca.crt").read_bytes(), user)

    async def keys(self) -> set[str]:
        return set((await self.command("restore-check", "list", "--output", "name")).split())


def request(name: str, node: str) -> dict[str, Any]:
    pem = build_request(generate_key(), f"system:node:{node}", (NODES,))
    spec = {
        "request": base64.b64encode(pem).decode(),
        "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        "usages": ["digital signature", "client auth"],
    }
    return {"metadata": {"name": name}, "spec": spec}


async def is_issued(client: ClusterClient, name: str) -> bool:
    found = await client.get("certificatesigningrequests", name)
    return bool((found.get("status") or {}).get("certificate"))


async def is_approved(client: ClusterClient, name: str) -> bool:
    """Approve a request; return False when a controller changed it at the same time."""
    found = await client.get("certificatesigningrequests", name)
    found["status"] = {"conditions": [{"type": "Approved", "status": "True", "reason": "test"}]}
    try:
        await client.update("certificatesigningrequests", found, subresource="approval")
    except ConflictError:
        return False
    return True


async def is_refused(cluster: Cluster, user: KubeconfigUser | None) -> bool:
    async with cluster.client(user) as client:
        try:
            await client.get("namespaces", "default")
        except UnauthorizedError:
            return True
        except ApiError:
            return False
        return False


async def check_closed(cluster: Cluster) -> None:
    """Check that what had ended stays ended and nothing is issued, while reads and writes of administrators go on."""
    assert await is_refused(cluster, cluster.user)
    assert await is_refused(cluster, KubeconfigUser("x", token=Secret(cluster.gone.encode())))
    async with cluster.server.client() as client:
        assert (await client.get("namespaces", "default"))["metadata"]["name"] == "default"
        await until(lambda: is_shown(client, b"[!]restore-check warning"), "/readyz has the line")
        review = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}}
        with pytest.raises(ServiceUnavailableError, match="nothing is issued"):
            await client.post_path("/api/v1/namespaces/default/serviceaccounts/default/token", review)
        await client.create("certificatesigningrequests", request("waits", "n3"))
        await until(lambda: is_approved(client, "waits"), "a person approves")
        assert not await is_issued(client, "waits")


EXPECTED = {"node.n1", "token.{gone}", "joins.{used}", "lineage.records"}


def expected(cluster: Cluster) -> set[str]:
    names = {"gone": cluster.gone.partition(".")[0], "used": cluster.used.partition(".")[0]}
    return {key.format(**names) for key in EXPECTED}


async def restore_snapshot(cluster: Cluster) -> None:
    for path in cluster.server.data_dir.glob("mooring.db*"):
        path.unlink()
    await asyncio.to_thread(
        cluster.run.done, "snapshot", "restore", str(cluster.snapshot), "--data-dir", str(cluster.server.data_dir)
    )


async def copy_back(cluster: Cluster) -> None:
    cluster.put_back()


@pytest.mark.crash
@pytest.mark.parametrize("restore", [restore_snapshot, copy_back], ids=["a snapshot", "a copied file"])
def test_what_ended_after_a_copy_of_the_store_stays_ended_until_it_is_applied(
    tmp_path: Path, mooring: CommandLine, restore: Callable[[Cluster], Awaitable[None]]
) -> None:
    cluster = Cluster(tmp_path, mooring)
    server = cluster.server

    async def scenario() -> None:
        await cluster.prepare()
        assert not await is_refused(cluster, cluster.user)
        await server.stop()
        cluster.keep_files()
        await cluster.start()
        await cluster.end()
        await server.stop()
        await restore(cluster)
        await cluster.start()
        await check_closed(cluster)
        assert await cluster.keys() == expected(cluster)
        assert server.log.count("issues nothing, until these tombstones") == 1
        await server.stop()
        await cluster.start()  # another start comes to the same judgement
        assert await cluster.keys() == expected(cluster)
        outcome = await asyncio.to_thread(mooring, "restore-check", "apply", "--all", *cluster.config)
        assert outcome.code == 1
        assert "lineage.records: " in outcome.err
        async with server.client() as client:
            await until(lambda: is_shown(client, b"[!]restore-check warning"), "/readyz has the line")
            await cluster.command("restore-check", "accept", "lineage.records")
            await until(lambda: is_issued(client, "waits"), "what waited is signed")
            await until(lambda: is_shown(client, b"[+]restore-check ok"), "/readyz has the line")
            with pytest.raises(NotFoundError):
                await client.get("nodes", "n1")
        assert await is_refused(cluster, cluster.user)
        assert await is_refused(cluster, KubeconfigUser("x", token=Secret(cluster.gone.encode())))
        await server.stop()
        await cluster.start()
        assert await cluster.keys() == set()
        async with server.client() as client:
            await until(lambda: is_shown(client, b"[+]restore-check ok"), "/readyz has the line")
        await server.stop()

    try:
        asyncio.run(scenario())
    finally:
        server.kill()


@pytest.mark.crash
def test_tombstones_that_are_accepted_count_no_more_and_are_not_asked_again(
    tmp_path: Path, mooring: CommandLine
) -> None:
    cluster = Cluster(tmp_path, mooring)
    server = cluster.server

    async def scenario() -> None:
        await cluster.prepare()
        await cluster.end()
        await server.stop()
        await restore_snapshot(cluster)
        await cluster.start()
        assert await is_refused(cluster, cluster.user)
        wrong = await asyncio.to_thread(mooring, "restore-check", "accept", "node.other", *cluster.config)
        assert (wrong.code, 'no tombstone "node.other" waits' in wrong.err) == (1, True)
        document = json.loads(await cluster.command("restore-check", "list", "--output", "json"))
        assert {item["key"] for item in document["items"]} == expected(cluster)
        async with server.client() as client:
            await client.delete(PLURAL, entry_name({"serialNumber": f"{cluster.leaf.serial_number:x}"}))
            assert not await is_refused(cluster, cluster.user)
            await cluster.command("restore-check", "accept", "--all")

            async def is_settled() -> bool:
                return "revocation" not in read_watermark(server.data_dir).tombstones

            await until(is_settled, "all was accepted")
        assert not await is_refused(cluster, cluster.user), "a revocation that was deleted is not made again"
        await server.stop()
        await cluster.start()
        assert await cluster.keys() == set()
        assert not await is_refused(cluster, cluster.user)
        await server.stop()

    try:
        asyncio.run(scenario())
    finally:
        server.kill()


@pytest.mark.crash
def test_a_watermark_that_cannot_be_read_closes_the_gate_until_it_is_accepted(
    tmp_path: Path, mooring: CommandLine
) -> None:
    cluster = Cluster(tmp_path, mooring)
    server = cluster.server
    watermark = server.data_dir / FILE_NAME

    async def scenario() -> None:
        await cluster.start()
        await server.stop()
        assert watermark.stat().st_mode & 0o777 == 0o600
        watermark.write_bytes(b"\x00" * 100)
        await cluster.start()
        assert await cluster.keys() == {"mark.data"}
        async with server.client() as client:
            await until(lambda: is_shown(client, b"[!]restore-check warning"), "/readyz has the line")
            with pytest.raises(ForbiddenError, match=r"mark\.data is not settled"):
                await client.delete("configmaps", tombstones.NAME, tombstones.NAMESPACE)
            await cluster.command("restore-check", "accept", "--all")

            async def written() -> bool:
                try:
                    return watermark.read_bytes().startswith(b"{")
                except FileNotFoundError:  # the damaged one is moved away first
                    return False

            await until(written, "a new watermark is written")
        assert (server.data_dir / f"{FILE_NAME}.damaged").read_bytes() == b"\x00" * 100
        await server.stop()
        assert read_watermark(server.data_dir).cluster

    try:
        asyncio.run(scenario())
    finally:
        server.kill()


@pytest.mark.crash
def test_a_store_that_was_emptied_is_noticed(tmp_path: Path, mooring: CommandLine) -> None:
    cluster = Cluster(tmp_path, mooring)
    server = cluster.server

    async def scenario() -> None:
        await cluster.prepare()
        await cluster.end()
        await server.stop()
        for path in server.data_dir.glob("mooring.db*"):
            path.unlink()
        await cluster.start()
        assert server.log.count("the store was restored from an older copy, emptied, or replaced by another one") == 1
        async with server.client() as client:
            await until(lambda: is_shown(client, b"[!]store-continuity warning"), "/readyz has the line")
        assert await is_refused(cluster, cluster.user)
        assert {"lineage.records"} < await cluster.keys()
        await server.stop()

    try:
        asyncio.run(scenario())
    finally:
        server.kill()


@pytest.mark.crash
@pytest.mark.parametrize(
    ("held", "is_recorded"),
    [
        pytest.param(False, False, id="a deleted Node"),
        pytest.param(True, False, id="a Node that a finalizer holds"),
        pytest.param(False, True, id="a Node that was not registered yet"),
    ],
)
def test_a_machine_that_joined_after_the_snapshot_and_was_removed_stays_out(
    tmp_path: Path, mooring: CommandLine, held: bool, is_recorded: bool
) -> None:
    cluster = Cluster(tmp_path, mooring)
    server = cluster.server

    async def scenario() -> None:
        await cluster.prepare()
        member, _ = user_of(server.data_dir, "system:node:n9", NODES)
        async with server.client() as client:
            if is_recorded:
                await client.create("nodeidentities", {"metadata": {"name": "n9"}, "spec": {"token": "abcdef"}})
                cluster.snapshot = tmp_path / "later.snapshot"
                await asyncio.to_thread(
                    mooring.done, "snapshot", "save", str(cluster.snapshot), "--data-dir", str(server.data_dir)
                )
            finalizers = {"finalizers": ["example.com/hold"]} if held else {}
            await client.create("nodes", {"metadata": {"name": "n9", **finalizers}})
            assert not await is_refused(cluster, member)
            await client.delete("nodes", "n9")
            assert await is_refused(cluster, member)
        await server.stop()
        await restore_snapshot(cluster)
        await cluster.start()
        assert await is_refused(cluster, member)
        assert "node.n9" in await cluster.keys()
        await cluster.command("restore-check", "apply", "node.n9")
        assert await is_refused(cluster, member)
        assert "node.n9" not in await cluster.keys()
        await server.stop()

    try:
        asyncio.run(scenario())
    finally:
        server.kill()
