"""Joining a real server process: what is on disk afterwards, and that running it again is safe."""

from __future__ import annotations

import asyncio
import stat
from dataclasses import replace
from pathlib import Path

from mooring.agent import steps
from mooring.agent.join import Joined, JoinOptions, join
from mooring.agent.state import NodeState
from mooring.agent.steps import Progress
from mooring.client.cluster import ClusterClient, connect
from mooring.client.kubeconfigfiles import load
from mooring.secret import Secret
from mooring.trust.discovery import Polling
from mooring.trust.joininput import JoinInput, JoinPlan, validate_join_input
from mooring.trust.token import BootstrapToken
from mooring.wire.schema import Obj
from tests.support.liveserver import LiveServer, live_server

__all__ = ["live_server"]
ONCE = Polling(attempts=1)


def plan_for(server: LiveServer, token: BootstrapToken, name: str, pin: str = "") -> JoinPlan:
    return validate_join_input(
        JoinInput(name, (server.endpoint,), Secret(token.reveal()), ca_cert_hashes=(pin or server.pin,))
    )


def joined(plan: JoinPlan, root: Path, told: list[Progress] | None = None, **changes: object) -> Joined:
    options = replace(JoinOptions(root=root, polling=ONCE, certificate_timeout=30.0), **changes)  # type: ignore[arg-type] # fields of JoinOptions
    return asyncio.run(join(plan, options, report=(told if told is not None else []).append))


def get(server: LiveServer, plural: str, name: str, namespace: str = "") -> Obj:
    async def read(client: ClusterClient) -> Obj:
        return await client.get(plural, name, namespace)

    return server.run(read)


def test_a_machine_that_knows_an_address_a_token_and_a_pin_becomes_a_member(
    live_server: LiveServer, tmp_path: Path
) -> None:
    token = live_server.create_token()
    told: list[Progress] = []
    result = joined(plan_for(live_server, token, "m1"), tmp_path, told)
    assert not result.already_member
    assert [one.step for one in told if one.seconds is not None] == [
        steps.EXISTING, steps.DISCOVERY, steps.EXISTING, steps.NAME, steps.BOOTSTRAP, steps.KEY, steps.REQUEST,
        steps.WAIT, steps.CERTIFICATE, steps.FILES, steps.NODE,
    ]  # fmt: skip
    assert not any(token.secret.reveal().decode() in one.message for one in told)

    state = NodeState(tmp_path)
    assert state.ca.read_bytes() == live_server.ca_pem
    assert state.current.is_symlink()
    assert state.current.readlink().is_absolute()
    assert not state.pending_key.exists()
    assert not state.bootstrap.exists()
    for path in (state.ca, state.current.resolve(), state.kubeconfig):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    async def as_the_node() -> Obj:
        async with connect(load(str(state.kubeconfig))) as client:
            return await client.get("nodes", "m1")

    node = asyncio.run(as_the_node())
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "m1"
    assert [one["status"] for one in node["status"]["conditions"] if one["type"] == "Ready"] == ["True"]


def test_joining_again_is_safe_even_when_the_token_is_gone(live_server: LiveServer, tmp_path: Path) -> None:
    token = live_server.create_token()
    plan = plan_for(live_server, token, "m2")
    first = joined(plan, tmp_path)
    live_server.run(lambda client: client.delete("secrets", f"bootstrap-token-{token.id}", "kube-system"))
    second = joined(plan, tmp_path)
    assert second.already_member
    assert first.pair is not None
    assert second.pair is not None
    assert second.pair.leaf == first.pair.leaf


def test_a_dry_run_writes_nothing_and_asks_for_nothing(live_server: LiveServer, tmp_path: Path) -> None:
    result = joined(plan_for(live_server, live_server.create_token(), "m3"), tmp_path, dry_run=True)
    assert any("kubelet.conf" in line for line in result.planned)
    assert list(tmp_path.iterdir()) == []
