"""Two server processes on one SQLite file, under load; the leader is killed.

Invariants: no acknowledged write is lost or overwritten (compare-and-swap holds across processes); the survivor's watches miss
nothing and repeat nothing; its controllers take over before the Lease expires, so certificate requests made to the dead process
are answered, each once.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest

from mooring.agent import certificaterequest
from mooring.agent.pairfiles import Pair
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock
from mooring.errors import ConflictError, PeerError
from mooring.pki.keys import PrivateKey, generate_key
from mooring.pki.x509 import bundles
from mooring.pki.x509.authority import check_matches_request
from mooring.pki.x509.requests import parse_request
from mooring.secret import Secret
from mooring.trust.bootstraptoken.token import BootstrapToken, generate_token
from mooring.trust.bootstraptoken.tokensecret import new_record, to_secret
from mooring.trust.kubeconfig import KubeconfigUser
from tests.support import sharedstore
from tests.support.killable import (
    KillableServer,
    check_takeover,
    client_of,
    controllers_lease,
    history,
    lease_held_by,
    seeded,
    servers_on_one_store,
)

WRITERS = 6
JOINERS = 40
SIDE_BY_SIDE = 8
PATIENCE = 60.0
PAUSE = 0.05

clock = SystemClock()


def config_map(name: str, count: int) -> Obj:
    metadata = {"name": name, "namespace": "default"}
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": {"count": str(count)}}


class Counting:
    """Writers that increment one counter by compare-and-swap and store a mark for each acknowledged increment."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.unsure = 0
        """Increments without an answer: stored or not."""
        self.revisions: dict[int, str] = {}
        """Revision of each acknowledged value."""
        self.enough = asyncio.Event()

    async def run(self, client: ClusterClient) -> None:
        """Write through one server, until the count is reached or the server is gone."""
        while not self.enough.is_set():
            try:
                current = await client.get("configmaps", "counter", "default")
            except PeerError:
                return
            value = int(current["data"]["count"]) + 1
            try:
                written = await client.update("configmaps", current | {"data": {"count": str(value)}})
            except ConflictError:
                continue
            except PeerError:
                self.unsure += 1
                return
            assert value not in self.revisions, "two writers were told that they wrote the same value"
            self.revisions[value] = written["metadata"]["resourceVersion"]
            self.acknowledged += 1

    async def until(self, count: int) -> None:
        while self.acknowledged < count:
            await asyncio.sleep(0.005)


async def certificate(clients: list[ClusterClient], name: str, told: dict[str, bytes]) -> None:
    """Get a certificate: create the request at the first server that answers, wait at any that runs."""
    key: PrivateKey = generate_key()
    made = certificaterequest.node_request(key, name)
    for client in clients * 20:
        try:
            obj, _ = await certificaterequest.send_request(client, made, key, clock.now())
            issued = await certificaterequest.wait(client, obj, PATIENCE / 20)
        except PeerError as error:
            if isinstance(error, certificaterequest.RequestEndedError | certificaterequest.ForeignRequestError):
                raise
            await asyncio.sleep(PAUSE)
            continue
        check_matches_request(Pair(bundles.certificates(issued), key).leaf, parse_request(made.pem), clock.now())
        told[made.name] = issued
        return
    raise AssertionError(f"{name} got no certificate")


async def follow_counter(client: ClusterClient, revision: str, seen: list[int], last: asyncio.Future[int]) -> None:
    """Append the counter's values from the survivor's watch to `seen`, up to the last."""
    async for event in client.watch(
        "configmaps", "default", resource_version=revision, field_selector="metadata.name=counter"
    ):
        if event.type == "MODIFIED":
            seen += [int(event.object["data"]["count"])]
        if last.done() and seen and seen[-1] >= last.result():
            return


@pytest.mark.crash
def test_the_survivor_takes_over_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    moments = seeded()
    leader, survivor = servers_on_one_store(tmp_path, 2)

    async def scenario() -> None:
        leader.launch()
        await leader.ready()
        survivor.launch()
        await survivor.ready()
        token = generate_token(moments.randbytes)
        ca_pem = (leader.data_dir / "pki/ca.crt").read_bytes()
        counting, told, seen = Counting(), dict[str, bytes](), list[int]()
        last: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        async with leader.client() as doomed, survivor.client() as admin, asyncio.timeout(4 * PATIENCE):
            await admin.create("secrets", to_secret(new_record(token, clock.now())))
            await lease_held_by(admin, leader.identity)
            created = await admin.create("configmaps", config_map("counter", 0))
            watching = asyncio.create_task(follow_counter(admin, created["metadata"]["resourceVersion"], seen, last))
            writers = [
                asyncio.create_task(counting.run(client)) for _ in range(WRITERS // 2) for client in (doomed, admin)
            ]
            joining = asyncio.create_task(join_all([leader, survivor], ca_pem, token, told))

            await counting.until(moments.randrange(50, 300))
            before = await controllers_lease(admin)
            leader.kill()
            check_takeover(before, clock.now(), await lease_held_by(admin, survivor.identity))

            await joining
            await counting.until(counting.acknowledged + 100)
            counting.enough.set()
            await asyncio.gather(*writers)
            value = int((await admin.get("configmaps", "counter", "default"))["data"]["count"])
            assert counting.acknowledged <= value <= counting.acknowledged + counting.unsure
            last.set_result(value)
            with suppress(ConflictError):  # one more event, in case the watch has delivered the last one already
                await admin.patch("configmaps", "counter", {"data": {"count": str(value + 1)}}, "default")
            await watching
            assert seen[: value + 1] == list(range(1, len(seen) + 1)), "nothing missed, nothing twice"
            requests = {item["metadata"]["name"]: item for item in (await admin.list(certificaterequest.PLURAL)).items}
            assert len(requests) == len(told) == JOINERS
            for name, issued in told.items():
                assert certificaterequest.certificate_of(requests[name]) == issued
        assert await survivor.stop() == 0
        await check_history(counting)

    async def check_history(counting: Counting) -> None:
        changes = await history(tmp_path / sharedstore.FILE)
        revisions = [change.revision for change in changes]
        assert revisions == list(range(revisions[0], revisions[-1] + 1))
        values: dict[str, str] = {}
        certificates: dict[str, set[str]] = {}
        for change in changes:
            if change.entry is None:
                continue
            obj = json.loads(change.entry.value)
            if change.key.endswith("/configmaps/default/counter"):
                values[str(change.revision)] = obj["data"]["count"]
            elif change.key.startswith(f"/registry/{certificaterequest.PLURAL}/") and obj.get("status", {}).get(
                "certificate"
            ):
                certificates.setdefault(change.key, set()).add(obj["status"]["certificate"])
        for value, revision in counting.revisions.items():
            assert values[revision] == str(value)
        assert [len(issued) for issued in certificates.values()] == [1] * JOINERS

    try:
        asyncio.run(scenario())
    except BaseException:
        print(leader.log[-2000:], survivor.log[-4000:], sep="\n----\n")  # noqa: T201 - shown with the failure
        raise
    finally:
        leader.kill()
        survivor.kill()


async def join_all(servers: list[KillableServer], ca_pem: bytes, token: BootstrapToken, told: dict[str, bytes]) -> None:
    user = KubeconfigUser("bootstrap", token=Secret(token.reveal()))
    places = asyncio.Semaphore(SIDE_BY_SIDE)
    async with client_of(servers[0], ca_pem, user) as one, client_of(servers[1], ca_pem, user) as other:

        async def join(n: int) -> None:
            async with places:
                await certificate([one, other] if n % 2 else [other, one], f"m{n}", told)

        async with asyncio.TaskGroup() as group:
            for n in range(JOINERS):
                group.create_task(join(n))
