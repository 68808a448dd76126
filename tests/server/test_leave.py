"""POST /mooring/v1/leave: a machine ends its own membership and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mooring.agent import leave, steps
from mooring.agent.leave import Membership
from mooring.agent.pairfiles import Pair as AgentPair
from mooring.agent.state import NodeState
from mooring.api.mooring.membership import with_spec
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient, connect
from mooring.client.kubeconfigfiles import load
from mooring.client.serverversion import NotMooringError
from mooring.clock import SystemClock
from mooring.errors import ConfigError, ForbiddenError, NotFoundError, StorageError, UnauthorizedError
from mooring.identity import NODES
from mooring.pki.keys import public_key_fingerprint
from mooring.pki.x509 import bundles
from mooring.trust.kubeconfig import Cluster
from tests.scenarios.test_renewal import joined
from tests.support import reissue
from tests.support.liveserver import LiveServer, live_server, start_server
from tests.support.manualclock import ManualClock
from tests.support.peer import ReceivedRequest, Reply, http_peer
from tests.support.serverroom import Server, connection, in_server, open_server
from tests.support.testca import Pair, ThrowawayCA

__all__ = ["live_server"]
PATH = "/mooring/v1/leave"


def leaves(state: NodeState) -> Obj:
    async def ask() -> Obj:
        async with connect(load(str(state.kubeconfig))) as client:
            return await client.post_path(PATH, {})

    return asyncio.run(ask())


def revocations(server: LiveServer) -> dict[str, Obj]:
    async def ask(client: ClusterClient) -> dict[str, Obj]:
        found = await client.list("certificaterevocations")
        return {one["metadata"]["name"]: one["spec"] for one in found.items}

    return server.run(ask)


def node_exists(server: LiveServer, name: str) -> bool:
    async def ask(client: ClusterClient) -> bool:
        try:
            await client.get("nodes", name)
        except NotFoundError:
            return False
        return True

    return server.run(ask)


def test_a_machine_ends_its_own_membership_and_no_other(live_server: LiveServer, tmp_path: Path) -> None:
    leaver, other = (joined(live_server, name, tmp_path / name) for name in ("leaver", "stays"))
    before = revocations(live_server)
    found = leaves(leaver)
    assert (found["nodeName"], len(found["revoked"])) == ("leaver", 1)
    new = {name: spec for name, spec in revocations(live_server).items() if name not in before}
    assert list(new) == found["revoked"]
    (spec,) = new.values()
    assert spec["reason"] == "cessationOfOperation"
    assert spec["expiresAt"]
    assert not node_exists(live_server, "leaver")
    with pytest.raises(UnauthorizedError):
        leaves(leaver)
    assert node_exists(live_server, "stays")
    assert leaves(other)["nodeName"] == "stays"


def test_the_name_of_a_machine_that_left_is_free_for_another(live_server: LiveServer, tmp_path: Path) -> None:
    leaves(joined(live_server, "vacated", tmp_path / "first"))
    joined(live_server, "vacated", tmp_path / "second")
    assert node_exists(live_server, "vacated")


def test_a_machine_without_a_node_leaves_and_frees_its_name(tmp_path: Path) -> None:
    server = start_server(tmp_path / "data", "--node-deletion", "reregisters", "--audit-log-path", "")
    try:
        state = joined(server, "absent", tmp_path / "root")
        server.run(lambda client: client.delete("nodes", "absent"))
        assert leaves(state)["nodeUID"] == ""
        with pytest.raises(UnauthorizedError):
            leaves(state)
        joined(server, "absent", tmp_path / "second")
    finally:
        server.stop()


def test_a_caller_that_is_no_machine_ends_nothing(live_server: LiveServer, tmp_path: Path) -> None:
    joined(live_server, "target", tmp_path / "root")

    async def impersonating() -> None:
        chosen = load(str(live_server.kubeconfig))
        user = replace(chosen.user, impersonate="system:node:target", impersonate_groups=("system:nodes",))
        async with connect(replace(chosen, user=user)) as client:
            await client.post_path(PATH, {"nodeName": "target"})

    async def administrator(client: ClusterClient) -> None:
        await client.post_path(PATH, {"nodeName": "target"})

    attempts: tuple[Callable[[], object], ...] = (
        lambda: asyncio.run(impersonating()),
        lambda: live_server.run(administrator),
    )
    for attempt in attempts:
        with pytest.raises(ForbiddenError, match="left by the machine itself"):
            attempt()
    assert node_exists(live_server, "target")


def test_the_agent_finds_the_membership_and_removes_its_files(live_server: LiveServer, tmp_path: Path) -> None:
    root = tmp_path / "root"
    joined(live_server, "tidy", root)
    found = leave.find(root, "/var/lib/rancher/k3s")
    assert found is not None
    assert (found.node_name, found.server) == ("tidy", live_server.url)
    assert asyncio.run(leave.end(found, SystemClock())) is True
    assert asyncio.run(leave.end(found, SystemClock())) is False
    leave.remove(found)
    assert [path for path in root.rglob("*") if path.is_file() or path.is_symlink()] == []
    assert leave.find(root, "/var/lib/rancher/k3s") is None


def test_a_credential_that_ended_ends_no_membership(live_server: LiveServer, tmp_path: Path) -> None:
    state = joined(live_server, "revoked", tmp_path / "root")
    pair = state.client.read_pair()
    assert pair is not None

    async def revoke(client: ClusterClient) -> None:
        spec = {"serialNumber": f"{pair.leaf.serial_number:x}"}
        name = f"serial-{pair.leaf.serial_number:x}"
        await client.create(
            "certificaterevocations",
            {
                "kind": "CertificateRevocation",
                "apiVersion": "mooring.dev/v1alpha1",
                "metadata": {"name": name},
                "spec": spec,
            },
        )

    live_server.run(revoke)
    with pytest.raises(UnauthorizedError):
        leaves(state)
    assert node_exists(live_server, "revoked")


def found_in(root: Path) -> Membership:
    found = leave.find(root, "/var/lib/rancher/k3s")
    assert found is not None
    return found


@pytest.mark.parametrize("behind", [timedelta(0), timedelta(minutes=2)], ids=["in time", "a clock that is behind"])
def test_an_expired_certificate_is_no_membership_that_has_ended(
    live_server: LiveServer, tmp_path: Path, behind: timedelta
) -> None:
    """The server answers 401, too. The files may bring the machine back, and its Node is still there."""
    name = f"expired-{behind.seconds}"
    state = joined(live_server, name, tmp_path)
    reissue.place(live_server, state, timedelta(minutes=-4), timedelta(minutes=-1))
    clock = ManualClock(SystemClock().now() - behind)
    with pytest.raises(ConfigError, match="let mooring agent get another one and leave then"):
        asyncio.run(leave.end(found_in(tmp_path), clock))
    assert node_exists(live_server, name)


@pytest.mark.parametrize(
    ("version", "refusals", "outcome"),
    [
        pytest.param(
            "v1.36.2", 99, "only a Mooring server lets a machine end its own membership", id="another program"
        ),
        pytest.param("v1.36.2", 1, True, id="one that restarted"),
        pytest.param("", 99, False, id="one that says nothing to strangers"),
        pytest.param("", 1, True, id="one of these that restarted"),
    ],
)
def test_401_of_another_server_is_an_end_only_where_it_may_be_mooring_and_stays(
    version: str, refusals: int, outcome: str | bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leave, "REFUSED_SECONDS", 0.3)
    monkeypatch.setattr(steps, "API_CALL_PAUSE", 0.01)
    ca, now, left = ThrowawayCA(), SystemClock().now(), iter(range(refusals))
    member = ca.node("strange")
    NodeState(tmp_path).client.write_pair(AgentPair((member.certificate,), member.key), now)

    def answer(asked: ReceivedRequest) -> Reply:
        if asked.path == "/version" and version:
            return Reply(body=json.dumps({"gitVersion": version}).encode())
        if asked.path == PATH and next(left, None) is None:
            return Reply()
        return Reply(401, json.dumps({"kind": "Status", "code": 401, "reason": "Unauthorized"}).encode())

    with http_peer(answer, ca.server()) as peer:
        cluster = Cluster("", peer.url, bundles.certificates_pem([ca.certificate]))
        found = replace(found_in(tmp_path), clusters=(cluster,))
        if isinstance(outcome, str):
            with pytest.raises(NotMooringError, match=outcome):
                asyncio.run(leave.end(found, SystemClock()))
        else:
            assert asyncio.run(leave.end(found, SystemClock())) is outcome


IDENTITIES = "/apis/mooring.dev/v1alpha1/nodeidentities"
DENYLIST = "/apis/mooring.dev/v1alpha1/certificaterevocations"


def key_entry(pair: Pair) -> Obj:
    return {"publicKey": f"sha256:{public_key_fingerprint(pair.key)}", "notAfter": "2030-01-01T00:00:00Z"}


async def member(server: Server, name: str, *pairs: Pair) -> None:
    """Let a name belong to the keys of these certificates, and give it a Node."""
    spec = {"keys": [key_entry(one) for one in pairs]}
    assert (await server.post(IDENTITIES, {"metadata": {"name": name}, "spec": spec})).status == 201
    assert (await server.post("/api/v1/nodes", {"metadata": {"name": name}})).status == 201


async def revoked_keys(server: Server) -> set[str]:
    items = (await server.get(DENYLIST)).obj["items"]
    return {one["spec"]["publicKey"] for one in items if "publicKey" in one["spec"]}


@pytest.mark.parametrize("is_of_another", [False, True], ids=["of the machine", "of another machine"])
@pytest.mark.parametrize("deletion", ["ends-membership", "reregisters"])
def test_a_certificate_that_was_signed_beside_the_request_is_revoked_unless_it_is_another_machines(
    deletion: str, is_of_another: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with open_server(node_deletion=deletion) as server:
            old, new = server.ca.client("system:node:n1", NODES), server.ca.client("system:node:n1", NODES)
            await member(server, "n1", old)
            delete = server.registry.writer.delete

            async def while_a_certificate_is_signed(*how: Any) -> Any:
                done = await delete(*how)
                identity = (await server.get(f"{IDENTITIES}/n1")).obj
                keys = [key_entry(new)] if is_of_another else [*identity["spec"]["keys"], key_entry(new)]
                await server.update("nodeidentities", with_spec(identity, keys=keys))
                return done

            monkeypatch.setattr(server.registry.writer, "delete", while_a_certificate_is_signed)
            reply = await server.post(PATH, {}, via=connection([old.der]))
            assert reply.status == 200, reply.text
            expected = {key_entry(old)["publicKey"]} | (set() if is_of_another else {key_entry(new)["publicKey"]})
            assert await revoked_keys(server) == expected

    asyncio.run(test())


def test_a_machine_whose_other_certificates_could_not_be_revoked_may_leave_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        async with open_server(node_deletion="reregisters") as server:
            old, new = server.ca.client("system:node:n1", NODES), server.ca.client("system:node:n1", NODES)
            await member(server, "n1", old, new)
            create = server.registry.writer.create

            async def failing(kind: Any, namespace: str, obj: Obj, *rest: Any) -> Any:
                if obj["spec"].get("publicKey") == key_entry(old)["publicKey"]:
                    raise StorageError("the disk is full")
                return await create(kind, namespace, obj, *rest)

            monkeypatch.setattr(server.registry.writer, "create", failing)
            assert (await server.post(PATH, {}, via=connection([new.der]))).status == 503
            monkeypatch.setattr(server.registry.writer, "create", create)
            reply = await server.post(PATH, {}, via=connection([new.der]))
            assert reply.status == 200, reply.text
            assert await revoked_keys(server) >= {key_entry(old)["publicKey"]}

    asyncio.run(test())


@in_server
async def test_a_dry_run_is_refused_and_ends_nothing(server: Server) -> None:
    pair = server.ca.client("system:node:n1", NODES)
    await member(server, "n1", pair)
    reply = await server.post(f"{PATH}?dryRun=All", {}, via=connection([pair.der]))
    assert (reply.status, reply.message) == (
        400,
        "dryRun: a membership is not left in a dry run; leave the parameter out",
    )
    assert (await server.get("/api/v1/nodes/n1")).status == 200


@in_server
async def test_a_machine_of_another_cluster_ends_nothing_here(server: Server) -> None:
    pair = server.ca.client("system:node:n1", NODES)
    await member(server, "n1", pair)
    for body, status, message in (
        ({"clusterID": "a-b-c"}, 403, "this is another cluster: its id is"),
        ({"clusterID": 7}, 400, 'the body is not a JSON object with a "clusterID" that is a text'),
        ([], 400, 'the body is not a JSON object with a "clusterID" that is a text'),
    ):
        reply = await server.post(PATH, body, via=connection([pair.der]))
        assert (reply.status, reply.message.startswith(message)) == (status, True), reply.text
    assert (await server.get("/api/v1/nodes/n1")).status == 200
    own = (await server.get("/api/v1/namespaces/kube-system")).obj["metadata"]["uid"]
    assert (await server.post(PATH, {"clusterID": own}, via=connection([pair.der]))).status == 200
