"""POST /mooring/v1/leave: a machine ends its own membership and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mooring.agent import leave
from mooring.agent.state import NodeState
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient, connect
from mooring.client.kubeconfigfiles import load
from mooring.clock import SystemClock
from mooring.errors import ForbiddenError, NotFoundError, UnauthorizedError
from tests.scenarios.test_renewal import joined
from tests.support.liveserver import LiveServer, live_server, start_server

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
