"""End of a membership and the way back, with a real server: a deleted Node, a rejected certificate, an expired one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from mooring.agent import certificaterequest, daemon, heartbeat, leave, member
from mooring.agent.join import Joined, JoinOptions, join
from mooring.agent.pairfiles import Pair
from mooring.agent.recovery import RecoveryRefusedError, rejoin
from mooring.agent.state import NodeState
from mooring.agent.steps import JoinError
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock
from mooring.errors import ConfigError, ConflictError, NotFoundError
from mooring.pki.keys import public_key_der, public_key_fingerprint
from mooring.secret import Secret
from mooring.servicenotifier import ServiceNotifier
from mooring.trust.joinconfiguration import JoinPlan
from tests.support import reissue
from tests.support.joinplans import join_options, join_plan
from tests.support.liveserver import LiveServer, start_server
from tests.support.manualclock import HurriedClock
from tests.support.polling import eventually

EXPIRED = (timedelta(minutes=-2), timedelta(seconds=-1))
"""Within the lifetime of the CA, which the server made at its start."""


def plan_for(server: LiveServer, name: str) -> JoinPlan:
    token = Secret(server.create_token().reveal())
    return join_plan(name, (server.endpoint,), token, pins=(server.pin,))


def options(root: Path) -> JoinOptions:
    return join_options(root=root, certificate_timeout=30.0)


def joined(server: LiveServer, name: str, root: Path) -> Joined:
    return asyncio.run(join(plan_for(server, name), options(root)))


def node(server: LiveServer, name: str) -> Obj | None:
    async def read(client: ClusterClient) -> Obj | None:
        try:
            return await client.get("nodes", name)
        except NotFoundError:
            return None

    return server.run(read)


def key_of(state: NodeState) -> bytes:
    pair = state.client.read_pair()
    assert pair is not None
    return public_key_der(pair.key)


def revoke(server: LiveServer, pair: Pair) -> None:
    fingerprint = public_key_fingerprint(pair.key)
    revocation = {
        "apiVersion": "mooring.dev/v1alpha1",
        "kind": "CertificateRevocation",
        "metadata": {"name": f"key-{fingerprint}"},
        "spec": {"publicKey": f"sha256:{fingerprint}"},
    }
    server.run(lambda client: client.create("certificaterevocations", revocation))


@pytest.mark.parametrize("is_dry", [False, True], ids=["for real", "as a dry run"])
def test_discovery_alone_moves_a_rejected_certificate_out_of_kubelets_way(
    live_server: LiveServer, tmp_path: Path, is_dry: bool
) -> None:
    """A kubelet requests no certificate while one that is not expired is current."""
    name = f"aside-{is_dry}".lower()
    member = joined(live_server, name, tmp_path)
    assert member.pair is not None
    revoke(live_server, member.pair)
    told: list[str] = []
    found = asyncio.run(
        join(
            plan_for(live_server, name),
            replace(options(tmp_path), discover_only=True, dry_run=is_dry),
            report=lambda progress: told.append(progress.message),
        )
    )
    state, aside = found.files, found.files.certificates / "kubelet-client-rejected.pem"
    said = [
        line for line in told if str(state.client.current) in line and "rejects" in line.replace("rejected", "rejects")
    ]
    if is_dry:
        assert said == [f"would move {state.client.current} aside, which the server rejects"]
        assert state.client.read_pair() is not None
        assert not state.bootstrap.exists()
        return
    assert said == [
        f"{state.client.current} is rejected by the server, and was moved to {aside}: kubelet would go on with it; restart kubelet"
    ]
    assert state.client.read_pair() is None
    assert not state.client.current.is_symlink()
    assert aside.read_bytes().startswith(member.pair.certificate_pem)
    assert state.bootstrap.exists()
    live_server.run(lambda client: client.delete("nodes", name))
    again = joined(live_server, name, tmp_path)
    assert again.pair is not None
    assert public_key_der(again.pair.key) != public_key_der(member.pair.key)


def agent(root: Path, scenario: Callable[[list[Joined]], Awaitable[None]], **changes: object) -> None:
    """Run `scenario` beside an agent without flags. It gets the memberships so far."""

    async def run() -> None:
        members: list[Joined] = []
        task = asyncio.create_task(daemon.run(None, options(root), on_member=members.append))
        try:
            await scenario(members)
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the periods of the agent."""
    monkeypatch.setattr(heartbeat, "RENEW_SECONDS", 0.1)
    monkeypatch.setattr(heartbeat, "REFUSED_SECONDS", 0.5)
    monkeypatch.setattr(daemon, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(member, "LEFT_SECONDS", 0.05)


def test_an_agent_whose_node_was_deleted_does_not_put_it_back_until_it_joins_again(
    live_server: LiveServer, tmp_path: Path, brisk: None, caplog: pytest.LogCaptureFixture
) -> None:
    first = joined(live_server, "dismissed", tmp_path)
    old_key = key_of(first.files)

    async def scenario(members: list[Joined]) -> None:
        await asyncio.to_thread(eventually, lambda: first.files.record.read().node_uid and members)
        async with live_server.client() as client:
            await client.delete("nodes", "dismissed")
        await asyncio.to_thread(eventually, lambda: "The heartbeat has ended" in caplog.text)
        assert await asyncio.to_thread(node, live_server, "dismissed") is None
        plan = await asyncio.to_thread(plan_for, live_server, "dismissed")
        await join(plan, options(tmp_path))
        await asyncio.to_thread(eventually, lambda: len(members) == 2)

    caplog.set_level(logging.INFO, "mooring.agent")
    agent(tmp_path, scenario)
    assert key_of(first.files) != old_key
    assert node(live_server, "dismissed") is not None
    assert "Join again with a token" in caplog.text


@pytest.mark.parametrize("moment", ["a member", "no member any more"])
def test_an_agent_ends_when_the_machine_leaves_and_does_not_join_again_with_its_token(
    moment: str, live_server: LiveServer, tmp_path: Path, brisk: None, caplog: pytest.LogCaptureFixture
) -> None:
    name = moment.replace(" ", "-")
    state, plan = joined(live_server, name, tmp_path).files, plan_for(live_server, name)

    async def scenario() -> None:
        members: list[Joined] = []
        running = asyncio.create_task(daemon.run(plan, options(tmp_path), on_member=members.append))
        await asyncio.to_thread(eventually, lambda: state.record.read().node_uid and members)
        if moment != "a member":
            await asyncio.to_thread(lambda: live_server.run(lambda client: client.delete("nodes", name)))
            await asyncio.to_thread(eventually, lambda: "The heartbeat has ended" in caplog.text)
        found = leave.of_kubeadm(state)
        assert found is not None
        await leave.end(found, SystemClock())
        leave.remove(found)
        with pytest.raises(
            ConfigError, match=r"this machine has left its cluster: .* were removed while the agent ran"
        ):
            await asyncio.wait_for(running, 20)

    asyncio.run(scenario())
    assert node(live_server, name) is None
    assert leave.of_kubeadm(state) is None


@pytest.fixture(scope="module")
def cautious_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Start a server that leaves every return to a person."""
    server = start_server(tmp_path_factory.mktemp("cautious") / "data", "--node-recovery=by-approval")
    yield server
    server.stop()


async def approve(client: ClusterClient, node_name: str) -> str:
    """Approve the request with which a recovering node came, when it is there. Return its name."""
    for obj in (await client.list(certificaterequest.PLURAL)).items:
        if obj["spec"]["username"] != f"system:recovering-node:{node_name}":
            continue
        conditions = (obj.get("status") or {}).get("conditions") or []
        if all(one["type"] != "Approved" for one in conditions):
            condition = {"type": "Approved", "status": "True", "reason": "Tested", "message": ""}
            status = {**(obj.get("status") or {}), "conditions": [*conditions, condition]}
            with suppress(ConflictError):  # a controller writes to it as well
                await client.update(certificaterequest.PLURAL, {**obj, "status": status}, subresource="approval")
        return str(obj["metadata"]["name"])
    return ""


def test_an_agent_that_was_off_for_too_long_comes_back_by_itself(cautious_server: LiveServer, tmp_path: Path) -> None:
    state = joined(cautious_server, "slept", tmp_path).files
    reissue.place(cautious_server, state, *EXPIRED)

    async def scenario(members: list[Joined]) -> None:
        async with cautious_server.client() as client:
            while not members:
                await approve(client, "slept")
                await asyncio.sleep(0.05)

    agent(tmp_path, scenario)
    pair = state.client.read_pair()
    assert pair is not None
    assert pair.valid_at(SystemClock().now())


def test_a_revoked_machine_does_not_come_back_and_is_told_to_bring_a_token(
    live_server: LiveServer, tmp_path: Path
) -> None:
    state = joined(live_server, "revoked", tmp_path).files
    pair = reissue.place(live_server, state, *EXPIRED)
    revoke(live_server, pair)
    with pytest.raises(JoinError) as caught:
        asyncio.run(rejoin(options(tmp_path), HurriedClock()))
    assert isinstance(caught.value.__cause__, RecoveryRefusedError)
    assert "the certificate was revoked" in str(caught.value)
    assert "join again with a token" in str(caught.value)


def test_the_service_manager_learns_why_a_machine_does_not_come_back(live_server: LiveServer, tmp_path: Path) -> None:
    state = joined(live_server, "unreturned", tmp_path).files
    revoke(live_server, reissue.place(live_server, state, *EXPIRED))
    said: list[str] = []

    class Listener(ServiceNotifier):
        def status(self, status: str) -> None:
            said.append(status)

    async def scenario() -> None:
        task = asyncio.create_task(daemon.run(None, options(tmp_path), HurriedClock(), notifier=Listener()))
        await asyncio.to_thread(eventually, lambda: said)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())
    assert "does not let this machine come back" in said[0]


def test_a_request_to_come_back_that_is_held_names_the_reason_and_goes_on_later(
    cautious_server: LiveServer, tmp_path: Path
) -> None:
    state = joined(cautious_server, "late", tmp_path).files
    old = reissue.place(cautious_server, state, *EXPIRED)
    brief = join_options(root=tmp_path, certificate_timeout=1.0)
    with pytest.raises(JoinError) as caught:
        asyncio.run(rejoin(brief, SystemClock()))
    key = state.read_pending_key()
    assert key is not None
    name = certificaterequest.node_request(key, "late").name
    assert f"the request {name} was not approved within 1 s (" in str(caught.value)
    assert f"approve it with `mooring csr approve {name}`" in str(caught.value)
    assert cautious_server.run(lambda client: approve(client, "late")) == name
    found = asyncio.run(rejoin(options(tmp_path), SystemClock()))
    assert found.request_name == name
    assert found.pair is not None
    assert found.pair.valid_at(SystemClock().now())
    assert public_key_der(found.pair.key) != public_key_der(old.key)
    assert not state.pending_key.exists()


def test_without_a_membership_there_is_no_way_back(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give the address of a server and a token"):
        asyncio.run(rejoin(options(tmp_path), SystemClock()))


def test_a_valid_member_is_refreshed_without_a_token(live_server: LiveServer, tmp_path: Path) -> None:
    first = joined(live_server, "fresh", tmp_path)
    before = key_of(first.files)
    found = asyncio.run(rejoin(options(tmp_path), SystemClock()))
    assert (found.already_member, key_of(first.files)) == (True, before)


def test_a_member_that_was_revoked_joins_again_with_a_token_and_a_new_key(
    live_server: LiveServer, tmp_path: Path
) -> None:
    first = joined(live_server, "replaced", tmp_path)
    pair = first.pair
    assert pair is not None
    revoke(live_server, pair)
    live_server.run(lambda client: client.delete("nodes", "replaced"))
    again = asyncio.run(join(plan_for(live_server, "replaced"), options(tmp_path), HurriedClock()))
    assert not again.already_member
    assert key_of(first.files) != public_key_der(pair.key)
