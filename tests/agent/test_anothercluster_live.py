"""Another cluster that answers at the address of a member's own, with the same CA: two data directories made from one pki."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from mooring.agent import daemon, heartbeat, leave, registration
from mooring.agent.doctor.examination import DoctorOptions
from mooring.agent.doctor.run import diagnose
from mooring.agent.join import Joined, JoinOptions, join
from mooring.agent.k3s import membership, process
from mooring.agent.k3s.files import GivenToken
from mooring.agent.k3s.membership import AgentPlan, SupervisedMember
from mooring.agent.k3s.process import SupervisedAgent, SupervisorRenewal
from mooring.agent.k3s.settings import K3sJoinSettings
from mooring.agent.recovery import rejoin
from mooring.agent.steps import JoinError
from mooring.client.cluster import connect
from mooring.client.kubeconfigfiles import load
from mooring.clock import SystemClock
from mooring.secret import Secret
from mooring.trust.discovery.errors import AnotherClusterError
from mooring.trust.discovery.fetch import Polling
from mooring.trust.joinconfiguration import JoinPlan
from mooring.trust.k3s.exchanges import KUBELET
from tests.support import reissue
from tests.support.joinplans import join_options, join_plan
from tests.support.liveserver import LiveServer, start_server
from tests.support.manualclock import HurriedClock
from tests.support.polling import eventually

OTHER = "another cluster answers there"
SERVER_TOKEN = "0123456789abcdef0123456789abcdef"


class Twins:
    """Two clusters of one CA, of which one answers at the address at a time."""

    def __init__(self, root: Path) -> None:
        (root / "token").write_text(f"{SERVER_TOKEN}\n")
        (root / "token").chmod(0o600)
        self._flags = ("--k3s-supervisor", "--server-token-file", str(root / "token"))
        self.own = start_server(root / "own", *self._flags)
        self._other = root / "other"
        self.answering = self.own
        self.second: LiveServer | None = None

    def swap(self) -> LiveServer:
        """Let the other cluster answer in place of the machines' own."""
        self.own.kill()
        if not self._other.exists():
            self._other.mkdir(mode=0o700)
            shutil.copytree(self.own.data_dir / "pki", self._other / "pki")
        self.answering = start_server(self._other, *self._flags, port=self.own.port)
        return self.answering

    def beside(self) -> LiveServer:
        """Start the other cluster at an address of its own."""
        self._other.mkdir(mode=0o700)
        shutil.copytree(self.own.data_dir / "pki", self._other / "pki")
        self.second = start_server(self._other, *self._flags)
        return self.second

    def swap_back(self) -> None:
        self.answering.kill()
        self.answering = self.own
        self.own.restart()


@pytest.fixture
def twins(tmp_path: Path) -> Iterator[Twins]:
    found = Twins(tmp_path)
    yield found
    found.answering.kill()
    if found.second is not None:
        found.second.kill()


def plan_for(server: LiveServer) -> JoinPlan:
    token = Secret(server.create_token().reveal())
    return join_plan("m1", (server.endpoint,), token, pins=(server.pin,))


def k3s_plan(twins: Twins, root: Path, token: str) -> AgentPlan:
    settings = K3sJoinSettings(server=(twins.own.url,), node_name="m2", root=str(root), disable_apiserver_lb=True)
    given = GivenToken(Secret(token) if token else None)
    return AgentPlan(settings=settings, token=given, polling=Polling(interval=0.5, total=20.0))


def options(root: Path) -> JoinOptions:
    return join_options(root=root, certificate_timeout=30.0)


def requests(server: LiveServer) -> list[str]:
    """Return the nodes whose certificate requests a cluster has."""
    found = server.run(lambda client: client.list("certificatesigningrequests"))
    return [one["spec"]["username"] for one in found.items]


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "RENEW_SECONDS", 0.1)
    monkeypatch.setattr(heartbeat, "REFUSED_SECONDS", 0.5)
    monkeypatch.setattr(registration, "REFUSED_SECONDS", 0.5)
    monkeypatch.setattr(daemon, "ASK_SECONDS", 0.2)
    monkeypatch.setattr(daemon, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(process, "FIRST_SECONDS", 0.0)


@pytest.mark.usefixtures("brisk")
def test_an_agent_waits_for_its_own_cluster(twins: Twins, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mooring.agent")
    asyncio.run(join(plan_for(twins.own), options(tmp_path)))

    async def run() -> None:
        task = asyncio.create_task(daemon.run(None, options(tmp_path)))
        await asyncio.to_thread(eventually, lambda: "member m1 of" in caplog.text)
        await asyncio.to_thread(twins.swap)
        await asyncio.to_thread(eventually, lambda: "The heartbeat waits" in caplog.text)
        assert OTHER in caplog.text
        assert "deleted" not in caplog.text
        await asyncio.to_thread(twins.swap_back)
        await asyncio.to_thread(eventually, lambda: "this machine is a member again" in caplog.text)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


@pytest.mark.usefixtures("brisk")
def test_an_agent_goes_on_at_the_address_of_its_own_cluster(
    twins: Twins, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mooring.agent")
    joined = asyncio.run(join(plan_for(twins.own), options(tmp_path)))
    other = twins.beside()
    state = options(tmp_path).state
    wrong = replace(joined.clusters[0], server=other.url)
    state.write_kubeconfig((wrong, *joined.clusters), state.read_base())

    async def run() -> None:
        task = asyncio.create_task(daemon.run(None, options(tmp_path)))
        await asyncio.to_thread(eventually, lambda: f"it goes on with {twins.own.url}" in caplog.text)
        await asyncio.to_thread(eventually, lambda: caplog.text.count("member m1 of") == 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    assert [one.server for one in state.read_clusters()] == [twins.own.url]
    assert "deleted" not in caplog.text


@pytest.mark.usefixtures("brisk")
def test_a_member_asks_another_cluster_for_nothing(twins: Twins, tmp_path: Path) -> None:
    member = asyncio.run(join(plan_for(twins.own), options(tmp_path)))
    other = twins.swap()
    for again in (plan_for(other), replace(plan_for(other), node_name="m1")):
        with pytest.raises(JoinError, match=f"failed at step existing: .*{OTHER}"):
            asyncio.run(join(again, options(tmp_path), HurriedClock()))
    with pytest.raises(JoinError, match=f"failed at step existing: .*{OTHER}"):
        asyncio.run(rejoin(options(tmp_path), HurriedClock()))
    with pytest.raises(AnotherClusterError):
        asyncio.run(renew(member))
    found = asyncio.run(diagnose(DoctorOptions(root=tmp_path), SystemClock()))
    broken = found.first_failure
    assert broken is not None
    assert (broken.step.name, OTHER in broken.judgement.message) == ("certificate", True)
    reissue.place(twins.own, member.files, timedelta(minutes=-2), timedelta(seconds=-1))
    with pytest.raises(JoinError, match=OTHER):
        asyncio.run(rejoin(options(tmp_path), HurriedClock()))
    assert requests(other) == []


async def renew(member: Joined) -> None:
    async def done() -> None:
        raise AssertionError("nothing is renewed")

    async with member.client(SystemClock()) as client:
        await daemon.client_renewal(member, client, done).obtain()


@pytest.mark.usefixtures("brisk")
def test_a_member_k3s_way_asks_another_cluster_for_nothing(twins: Twins, tmp_path: Path) -> None:
    token = (twins.own.data_dir / "server/token").read_text().strip()
    plan = k3s_plan(twins, tmp_path, token)
    files, members = plan.files(), list[SupervisedMember]()

    async def run() -> None:
        agent = SupervisedAgent(plan, SystemClock(), lambda progress: None, on_member=members.append)
        task = asyncio.create_task(agent.run())
        await asyncio.to_thread(eventually, lambda: files.read_cluster_id() or task.done())
        await asyncio.to_thread(twins.swap)
        with pytest.raises(JoinError, match=OTHER):
            await task

    asyncio.run(run())
    with pytest.raises(JoinError, match=f"failed at step discovery: .*{OTHER}"):
        asyncio.run(membership.join(plan, HurriedClock(), lambda progress: None))
    renewal = SupervisorRenewal(KUBELET, lambda: members[0], SystemClock(), nothing)
    with pytest.raises(AnotherClusterError):
        asyncio.run(renewal.obtain())
    assert requests(twins.answering) == []


@pytest.mark.usefixtures("brisk")
def test_a_member_leaves_no_other_cluster(twins: Twins, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    token = (twins.own.data_dir / "server/token").read_text().strip()
    asyncio.run(join(plan_for(twins.own), options(tmp_path / "m1")))
    plan = k3s_plan(twins, tmp_path / "m2", token)
    asyncio.run(k3s_member(plan))
    other = twins.swap()
    for root in (tmp_path / "m1", tmp_path / "m2"):
        found = leave.find(root, plan.settings.data_dir)
        assert found is not None
        with pytest.raises(AnotherClusterError):
            asyncio.run(leave.end(found, HurriedClock()))
        asyncio.run(leave.on_stop(partial(leave.find, root, plan.settings.data_dir), HurriedClock()))
        assert f"the membership was not ended, its files stay: comparing the cluster of {other.url}" in caplog.text
        assert all(path.exists() for path in found.files)
        caplog.clear()
    assert other.run(lambda client: client.list("certificaterevocations")).items == ()
    twins.swap_back()
    for root in (tmp_path / "m1", tmp_path / "m2"):
        found = leave.find(root, plan.settings.data_dir)
        assert found is not None
        assert asyncio.run(leave.end(found, SystemClock())) is True


async def k3s_member(plan: AgentPlan) -> None:
    """Join, and run the agent until it knows the id of the cluster."""
    agent = SupervisedAgent(plan, SystemClock(), lambda progress: None)
    task = asyncio.create_task(agent.run())
    await asyncio.to_thread(eventually, lambda: plan.files().read_cluster_id() or task.done())
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def nothing() -> None:
    """Follow no renewal."""


def test_a_machine_that_left_may_join_the_other_cluster(twins: Twins, tmp_path: Path) -> None:
    asyncio.run(join(plan_for(twins.own), options(tmp_path)))
    first = options(tmp_path).state.read_cluster_id()
    shutil.rmtree(tmp_path / "etc")
    shutil.rmtree(tmp_path / "var")
    other = twins.swap()
    asyncio.run(join(plan_for(other), options(tmp_path)))

    async def uid() -> str:
        async with connect(load(str(other.kubeconfig))) as client:
            return str((await client.get("namespaces", "kube-system"))["metadata"]["uid"])

    assert options(tmp_path).state.read_cluster_id() == asyncio.run(uid())
    assert first not in ("", asyncio.run(uid()))
