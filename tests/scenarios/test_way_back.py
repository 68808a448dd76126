"""Machines that were off beyond the end of their certificates.

One comes back by rule, through `kill -9` of itself and of the server; a revoked one does not; one that was off for too long waits
for a person.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from mooring.agent.join import join
from mooring.agent.pairfiles import Pair
from mooring.agent.state import NodeState
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock, rfc3339
from mooring.errors import ConflictError, NotFoundError
from mooring.pki.keys import generate_key, private_key_pem, public_key_fingerprint
from mooring.pki.x509 import profiles
from mooring.pki.x509.authority import Authority, self_signed_ca
from mooring.pki.x509.bundles import certificates_pem
from mooring.secret import Secret
from mooring.trust.bootstraptoken.token import generate_token
from mooring.trust.bootstraptoken.tokensecret import new_record, to_secret
from mooring.trust.discovery.pins import pins_of
from mooring.trust.kubeconfig import KubeconfigUser
from tests.support import forkserver
from tests.support.joinplans import join_options, join_plan
from tests.support.killable import KillableServer, client_of, seeded
from tests.support.polling import eventually

DAY = timedelta(days=1)
REQUESTS = "certificatesigningrequests"
clock = SystemClock()


def old_cluster(directory: Path) -> Authority:
    """Write a CA that is older than every certificate of the test, for the server's first start."""
    key = generate_key()
    authority = self_signed_ca(key, "kubernetes", clock.now() - 400 * DAY, 1)
    pki = directory / "pki"
    pki.mkdir(parents=True, mode=0o700)
    (pki / "ca.key").touch(mode=0o600)
    (pki / "ca.key").write_bytes(private_key_pem(key))
    (pki / "ca.crt").write_bytes(certificates_pem([authority.certificate]))
    return authority


async def member(server: KillableServer, admin: ClusterClient, name: str, root: Path) -> NodeState:
    """Join a machine with a token, and return its files."""
    token = generate_token(seeded().randbytes)
    await admin.create("secrets", to_secret(new_record(token, clock.now(), ttl=DAY)))
    pin = str(pins_of((server.data_dir / "pki/ca.crt").read_bytes())[0])
    plan = join_plan(name, (server.endpoint,), Secret(token.reveal()), (pin,))
    return (await join(plan, join_options(root=root), clock)).files


async def expire(state: NodeState, name: str, authority: Authority, admin: ClusterClient, ago: timedelta) -> None:
    """Replace the certificate of a machine by one that ended `ago`, on its disk and in its NodeIdentity."""
    pair = state.client.read_pair()
    assert pair is not None
    begin = clock.now() - ago - DAY
    template = profiles.client(pair.key.public_key(), begin, f"system:node:{name}", ("system:nodes",), DAY)
    leaf = authority.sign(template, begin, 1000 + ago.days)
    state.client.write_pair(Pair((leaf,), pair.key), begin)
    key = {"publicKey": f"sha256:{public_key_fingerprint(pair.key)}", "notAfter": rfc3339(leaf.not_valid_after_utc)}
    spec = {"keys": [key], "sourceAddress": "127.0.0.1"}
    try:
        stored = await admin.get("nodeidentities", name)
    except NotFoundError:
        await admin.create(
            "nodeidentities",
            {"apiVersion": "mooring.dev/v1alpha1", "kind": "NodeIdentity", "metadata": {"name": name}, "spec": spec},
        )
    else:
        await admin.update("nodeidentities", {**stored, "spec": {**stored["spec"], **spec}})


@contextmanager
def agent(root: Path) -> Iterator[forkserver.Process]:
    """Run `mooring agent` with its log beside the files of the machine, and kill it at the end."""
    with Path(f"{root}.log").open("ab") as log:
        process = forkserver.Process(["-m", "mooring", "agent", "--root", str(root)], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def is_member(state: NodeState) -> bool:
    pair = state.client.read_pair()
    return pair is not None and pair.valid_at(clock.now())


async def requests_of(admin: ClusterClient, name: str) -> list[Obj]:
    listed = await admin.list(REQUESTS)
    return [one for one in listed.items if one["spec"].get("username") == f"system:recovering-node:{name}"]


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    for _ in range(600):
        if await condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(what)


def conditions(request: Obj) -> list[tuple[str, str]]:
    return [(one["type"], one["reason"]) for one in (request.get("status") or {}).get("conditions") or ()]


@pytest.mark.crash
def test_machines_come_back_after_their_certificates_have_expired(tmp_path: Path) -> None:
    server = KillableServer(tmp_path / "data")
    authority = old_cluster(server.data_dir)

    async def scenario() -> None:
        server.launch()
        await server.ready()
        states: dict[str, NodeState] = {}
        async with server.client() as admin:
            for name, ago in (("rule", 3 * DAY), ("revoked", 3 * DAY), ("old", 60 * DAY)):
                states[name] = await member(server, admin, name, tmp_path / name)
                await expire(states[name], name, authority, admin, ago)
            await admin.create(
                "certificaterevocations",
                {
                    "apiVersion": "mooring.dev/v1alpha1",
                    "kind": "CertificateRevocation",
                    "metadata": {"name": "node-revoked"},
                    "spec": {"nodeName": "revoked", "reason": "keyCompromise"},
                },
            )
            with agent(tmp_path / "rule"):

                async def asks() -> bool:
                    return bool(await requests_of(admin, "rule")) or is_member(states["rule"])

                await until(asks, "the machine asks for a certificate")
        server.kill()
        server.launch()
        await server.ready()
        with agent(tmp_path / "rule"), agent(tmp_path / "revoked"), agent(tmp_path / "old"):
            async with server.client() as admin:
                await asyncio.to_thread(eventually, lambda: is_member(states["rule"]))
                for request in await requests_of(admin, "rule"):
                    assert ("Approved", "AutoApproved") in conditions(request)

                async def waits() -> bool:
                    return [conditions(one) for one in await requests_of(admin, "old")] == [
                        [("NeedsApproval", "ExpiredTooLongAgo")]
                    ]

                await until(waits, "the request waits for a person")
                (request,) = await requests_of(admin, "old")
                await approve(admin, request["metadata"]["name"])
                await asyncio.to_thread(eventually, lambda: is_member(states["old"]))
                await asyncio.to_thread(eventually, lambda: "certificate-node-revoked" in server.log)
                assert await requests_of(admin, "revoked") == []
                assert not is_member(states["revoked"])
        current = str(states["rule"].client.current)
        node = KubeconfigUser("system:node:rule", certificate_file=current, key_file=current)
        async with client_of(server, authority.certificate_pem, node) as client:
            assert (await client.get("nodes", "rule"))["metadata"]["name"] == "rule"

    try:
        asyncio.run(scenario())
    finally:
        server.kill()


async def approve(admin: ClusterClient, name: str) -> None:
    """Approve a request as a person does, whatever else is written to it meanwhile."""
    while True:
        request = await admin.get(REQUESTS, name)
        decided = {"type": "Approved", "status": "True", "reason": "KnownMachine", "message": "seen it"}
        request["status"]["conditions"].append(decided)
        try:
            await admin.update(REQUESTS, request, subresource="approval")
        except ConflictError:
            continue
        return
