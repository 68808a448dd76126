"""`kill -9` of the server at random moments while machines join.

Invariants: every acknowledged join is stored with the certificate that was returned; the others retried and succeeded; revisions
never decreased, not even across a restart; no request got two certificates; cluster-info is signed; controllers acted at once
after each restart, without waiting for the dead process's Lease.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mooring.agent import certificaterequest
from mooring.agent.join import join
from mooring.agent.state import NodeState
from mooring.agent.steps import JoinError, Progress
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.watchevent import BOOKMARK
from mooring.client.cluster import ClusterClient, ListResult
from mooring.client.http.requests import drive_fetching
from mooring.client.listwatch import follow
from mooring.clock import SystemClock
from mooring.errors import PeerError
from mooring.pki.keys import PrivateKey, generate_key
from mooring.pki.x509 import bundles
from mooring.secret import Secret
from mooring.trust.bootstraptoken.token import BootstrapToken, generate_token
from mooring.trust.bootstraptoken.tokensecret import new_record, to_secret
from mooring.trust.discovery.fetch import Polling, discover_by_token
from mooring.trust.discovery.pins import Pin, pins_of
from mooring.trust.kubeconfig import Cluster, KubeconfigUser
from tests.support.joinplans import join_options, join_plan
from tests.support.killable import KillableServer, check_takeover, controllers_lease, history, lease_held_by, seeded

JOINS = 300
AGENTS = 20
"""Joins by whole agents with files and Nodes; the others use only the protocol."""
SIDE_BY_SIDE = 24
KILLS = 5
POLLING = Polling(interval=0.1, total=280.0)
PAUSE = 0.1
PATIENCE = 280.0
"""Seconds after which a join is considered hung."""

clock = SystemClock()


@dataclass
class Ledger:
    """Writes that the server acknowledged."""

    progress: int = 0
    """Answered steps of all joins; kills are scheduled by this count."""
    highest: int = 0
    """The highest revision in any answer so far."""
    failures: int = 0
    """Steps that were retried."""
    requests: dict[str, str] = field(default_factory=dict)
    """uid of each request whose creation was acknowledged, by name."""
    records: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Request and certificate of each node whose join was acknowledged."""

    def answered(self, revision: str = "") -> None:
        self.progress += 1
        self.highest = max(self.highest, int(revision or 0))


@dataclass(frozen=True)
class Joiner:
    """One joining machine and its discovery data."""

    endpoint: str
    token: BootstrapToken
    pins: tuple[Pin, ...]
    ledger: Ledger

    async def by_protocol(self, name: str) -> None:
        """Join by discovery, request and certificate, without files; retries use the same key."""
        key = generate_key()
        made = certificaterequest.node_request(key, name)
        while True:
            try:
                trusted = await drive_fetching(
                    discover_by_token((self.endpoint,), self.token, self.pins, polling=POLLING), clock
                )
                self.ledger.answered()
                cluster = Cluster("", trusted.server, trusted.ca_pem)
                user = KubeconfigUser("bootstrap", token=Secret(self.token.reveal()))
                async with ClusterClient(cluster, user, clock) as client:
                    issued = await self._certificate(client, made, key)
                break
            except PeerError as error:
                if isinstance(error, certificaterequest.RequestEndedError | certificaterequest.ForeignRequestError):
                    raise  # a crash never ends a request
                self.ledger.failures += 1
                await asyncio.sleep(PAUSE)
        self.ledger.records[name] = (made.name, issued)
        self.ledger.answered()

    async def _certificate(self, client: ClusterClient, made: certificaterequest.NodeRequest, key: PrivateKey) -> bytes:
        before = self.ledger.highest
        obj, there = await certificaterequest.send_request(client, made, key, clock.now())
        metadata = obj["metadata"]
        if not there:
            assert int(metadata["resourceVersion"]) > before, "a later write has a later revision"
            self.ledger.requests[made.name] = metadata["uid"]
        assert self.ledger.requests.setdefault(made.name, metadata["uid"]) == metadata["uid"]
        self.ledger.answered(metadata["resourceVersion"])
        return await certificaterequest.wait(client, obj, PATIENCE)

    async def by_agent(self, name: str, root: Path) -> None:
        """Join by `mooring join`, repeated until it succeeds."""
        token = Secret(self.token.reveal())
        given = join_plan(name, (self.endpoint,), token, pins=tuple(map(str, self.pins)))
        options = join_options(root=root, polling=POLLING, certificate_timeout=PATIENCE)

        def report(progress: Progress) -> None:
            if progress.seconds is not None:
                self.ledger.answered()

        while True:
            try:
                joined = await join(given, options, report=report)
                break
            except JoinError as error:
                if not isinstance(error.__cause__, PeerError):
                    raise  # only the server may fail
                self.ledger.failures += 1
                await asyncio.sleep(PAUSE)
        assert joined.pair is not None
        made = certificaterequest.node_request(joined.pair.key, name)
        self.ledger.records[name] = (made.name, joined.pair.certificate_pem)


class Impatient(SystemClock):
    """Clock without backoff: a client reconnects at once after each restart."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, PAUSE))


class Observer:
    """A watch over all requests across restarts; it checks that revisions never decrease."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self.revision = 0
        self.certificates: dict[str, set[bytes]] = {}
        self.repeated: list[str] = []

    async def run(self) -> None:
        async for change in follow(self._client, certificaterequest.PLURAL):
            if isinstance(change, ListResult):
                self._at(int(change.resource_version), "list")
                for item in change.items:
                    self._saw(item)
            elif change.type != BOOKMARK:
                self._at(int(change.object["metadata"]["resourceVersion"]), change.type)
                self._saw(change.object)

    def _at(self, revision: int, what: str) -> None:
        if revision < self.revision or (revision == self.revision and what != "list"):
            self.repeated.append(f"{what}: {revision} after {self.revision}")
        self.revision = revision

    def _saw(self, obj: Obj) -> None:
        if issued := certificaterequest.certificate_of(obj):
            self.certificates.setdefault(obj["metadata"]["name"], set()).add(issued)


async def kill_again_and_again(server: KillableServer, ledger: Ledger, moments: random.Random) -> None:
    """Kill the server after a number of answered steps and a random delay; half of the restarts are killed during start."""
    steps_in_all = 3 * JOINS
    async with server.client() as admin:
        for step in sorted(moments.sample(range(10, steps_in_all * 9 // 10), KILLS)):
            while ledger.progress < step:
                await asyncio.sleep(0.005)
            await asyncio.sleep(moments.random() * 0.03)
            before = await controllers_lease(admin)
            server.kill()
            if moments.random() < 0.5:
                server.launch()
                await asyncio.sleep(moments.random())
                server.kill()
            server.launch()
            await server.ready()
            check_takeover(before, clock.now(), await lease_held_by(admin, server.identity))
            promised = ledger.highest  # read before the request, because joins continue meanwhile
            assert int((await admin.list("namespaces")).resource_version) >= promised


@pytest.mark.crash
def test_every_acknowledged_join_is_stored_and_all_joins_succeed(tmp_path: Path) -> None:
    moments = seeded()
    server = KillableServer(tmp_path / "data")
    ledger = Ledger()

    async def scenario() -> None:
        server.launch()
        await server.ready()
        token = generate_token(moments.randbytes)
        async with server.client() as admin, server.client() as watcher, asyncio.timeout(PATIENCE):
            await admin.create("secrets", to_secret(new_record(token, clock.now())))
            watcher.clock = Impatient()
            observer = Observer(watcher)
            watching = asyncio.create_task(observer.run())
            ca_pem = (server.data_dir / "pki/ca.crt").read_bytes()
            joiner = Joiner(server.endpoint, token, pins_of(ca_pem), ledger)
            places = asyncio.Semaphore(SIDE_BY_SIDE)
            agents = set(moments.sample(range(JOINS), AGENTS))

            async def one(n: int) -> None:
                async with places:
                    if n in agents:
                        await joiner.by_agent(f"m{n}", tmp_path / f"m{n}")
                    else:
                        await joiner.by_protocol(f"m{n}")

            async with asyncio.TaskGroup() as group:
                group.create_task(kill_again_and_again(server, ledger, moments))
                for n in range(JOINS):
                    group.create_task(one(n))

            await check_promises(admin, ledger, {f"m{n}" for n in agents}, tmp_path)
            await drive_fetching(
                discover_by_token((server.endpoint,), token, joiner.pins, polling=Polling(attempts=1)), clock
            )
            while len(observer.certificates) < JOINS and not watching.done():
                await asyncio.sleep(0.02)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            assert observer.repeated == []
            assert all(len(seen) == 1 for seen in observer.certificates.values())
        assert await server.stop() == 0
        await check_history(server.data_dir, ledger)

    try:
        asyncio.run(scenario())
    except BaseException:
        sys.stdout.write(server.log[-4000:])
        raise
    finally:
        server.kill()
    assert ledger.failures, "the kills were noticed"


async def check_promises(admin: ClusterClient, ledger: Ledger, agents: set[str], folder: Path) -> None:
    assert len(ledger.records) == JOINS
    requests = {item["metadata"]["name"]: item for item in (await admin.list(certificaterequest.PLURAL)).items}
    assert len(requests) == JOINS, "nobody had to ask twice"
    for node, (name, certificate) in ledger.records.items():
        kept = requests[name]
        assert kept["metadata"]["uid"] == ledger.requests.get(name, kept["metadata"]["uid"])
        assert bundles.certificates(certificaterequest.certificate_of(kept)) == bundles.certificates(certificate), node
    nodes = {item["metadata"]["name"] for item in (await admin.list("nodes")).items}
    assert nodes == agents
    for name in agents:
        state = NodeState(folder / name)
        pair = state.client.read_pair()
        assert pair is not None
        assert pair.certificate_pem == ledger.records[name][1]
        assert not state.bootstrap.exists()
        assert not state.pending_key.exists()


async def check_history(data_dir: Path, ledger: Ledger) -> None:
    """Check the complete history in the store."""
    changes = await history(data_dir / "mooring.db")
    revisions = [change.revision for change in changes]
    assert revisions == list(range(revisions[0], revisions[-1] + 1))
    assert revisions[-1] >= ledger.highest
    certificates: dict[str, set[str]] = {}
    for change in changes:
        if change.key.startswith(f"/registry/{certificaterequest.PLURAL}/"):
            assert change.entry is not None, "no request was deleted"
            issued = json.loads(change.entry.value).get("status", {}).get("certificate")
            if issued:
                certificates.setdefault(change.key.rpartition("/")[2], set()).add(issued)
    assert {name: len(seen) for name, seen in certificates.items()} == dict.fromkeys(certificates, 1)
    for name, issued in ledger.records.values():
        (kept,) = certificates[name]
        assert bundles.certificates(base64.b64decode(kept)) == bundles.certificates(issued)
