"""Retries of a join while a server restarts, by step, on manual clocks."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from mooring.agent import join as joining
from mooring.agent import member, steps
from mooring.agent.join import Joined, join
from mooring.agent.state import NodeState
from mooring.agent.steps import JoinError, Progress, retry
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.watchevent import WatchEvent
from mooring.client.cluster import ClusterClient, ListResult, Target
from mooring.clock import SystemClock
from mooring.errors import (
    ApiError,
    ForbiddenError,
    MooringError,
    NotFoundError,
    ServiceUnavailableError,
    UnauthorizedError,
)
from mooring.secret import Secret
from mooring.trust.discovery.errors import EndpointDownError, NotKubernetesError
from mooring.trust.discovery.fetch import Polling
from mooring.trust.joinconfiguration import JoinPlan
from mooring.trust.kubeconfig import Cluster, KubeconfigUser
from tests.support.joinplans import join_options, join_plan
from tests.support.liveserver import LiveServer
from tests.support.manualclock import HurriedClock, ManualClock

PASSING: list[MooringError] = [
    UnauthorizedError(),
    ForbiddenError("no"),
    ServiceUnavailableError("starting"),
    EndpointDownError("asking", "connection refused"),
    NotKubernetesError("asking", "status 502 without a Kubernetes Status"),
]


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
def test_a_failure_that_a_restart_explains_is_asked_again_for_a_minute_and_told_once(error: MooringError) -> None:
    async def run() -> None:
        clock = ManualClock()
        calls: list[float] = []
        troubles: list[MooringError] = []

        async def call() -> None:
            calls.append(clock.monotonic())
            raise error

        task = asyncio.create_task(retry(clock, call, on_failure=troubles.append))
        await clock.advance(59.9)
        assert not task.done()
        await clock.advance(0.2)
        with pytest.raises(type(error)):
            await task
        assert calls[:5] == [0.0, 0.5, 1.5, 3.5, 7.5]
        assert len(calls) < 20  # failed authentications that a server may count against one address
        assert calls[-1] == 60.0
        assert troubles == [error]

    asyncio.run(run())


def test_what_a_restart_does_not_explain_is_final() -> None:
    async def call() -> None:
        raise NotFoundError("no such thing")

    with pytest.raises(NotFoundError):
        asyncio.run(retry(ManualClock(), call))


# ── a whole join against a server that refuses for a while ───────────────────────────────────────────────────────


class Refusing(ClusterClient):
    """Server that refuses requests: each entry of `refusals` is one response."""

    refusals: list[tuple[str, MooringError]]

    def _refuse(self, verb: str) -> None:
        for index, (refused, error) in enumerate(self.refusals):
            if refused == verb:
                del self.refusals[index]
                raise error

    async def get(self, target: Target, name: str, namespace: str = "") -> Obj:
        self._refuse(f"get {target}")
        return await super().get(target, name, namespace)

    async def create(self, target: Target, obj: Obj, namespace: str = "", **rest: Any) -> Obj:
        self._refuse(f"create {target}")
        return await super().create(target, obj, namespace, **rest)

    async def list(self, target: Target, namespace: str = "", **rest: Any) -> ListResult:
        self._refuse(f"list {target}")
        return await super().list(target, namespace, **rest)

    async def watch(self, target: Target, namespace: str = "", **rest: Any) -> AsyncGenerator[WatchEvent]:
        self._refuse(f"watch {target}")
        async for event in super().watch(target, namespace, **rest):
            yield event

    async def get_path(self, path: str) -> Obj:
        self._refuse(f"get {path}")
        return await super().get_path(path)


async def is_kubernetes(*_: Any) -> bool:
    return False


CSRS = "certificatesigningrequests"
Joining = Callable[..., tuple[Joined, list[Progress]]]


@pytest.fixture
def join_refused(live_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Joining:
    """Return a join that gets the refusals of another API server than Mooring, unless `from_mooring` is given."""
    monkeypatch.setattr(joining, "ClusterClient", Refusing)
    monkeypatch.setattr(member, "ClusterClient", Refusing)

    def run(
        name: str, *refusals: tuple[str, MooringError], from_mooring: bool = False, **changes: Any
    ) -> tuple[Joined, list[Progress]]:
        if not from_mooring:
            monkeypatch.setattr(steps, "is_mooring_server", is_kubernetes)
        Refusing.refusals = list(refusals)
        told: list[Progress] = []
        options = join_options(root=tmp_path, polling=Polling(attempts=1), certificate_timeout=30.0, **changes)
        return asyncio.run(join(plan(live_server, name), options, HurriedClock(), told.append)), told

    return run


def plan(server: LiveServer, name: str, **token: Any) -> JoinPlan:
    secret = Secret(server.create_token(**token).reveal())
    return join_plan(name, (server.endpoint,), secret, pins=(server.pin,))


@pytest.mark.parametrize("error", [UnauthorizedError(), ForbiddenError("no informer yet")], ids=["401", "403"])
@pytest.mark.parametrize(
    ("where", "step"),
    [
        ("get nodes", steps.NAME),
        (f"create {CSRS}", steps.REQUEST),
        (f"list {CSRS}", steps.WAIT),
        ("get /version", steps.NODE),
        ("create nodes", steps.NODE),
    ],
)
def test_a_server_that_refuses_for_a_moment_does_not_end_a_join(
    join_refused: Joining, where: str, step: str, error: ApiError
) -> None:
    name = re.sub("[^a-z]+", "-", f"moment {where} {error.reason.lower()}")
    joined, told = join_refused(name, (where, error), (where, error))
    assert joined.request_name
    assert Refusing.refusals == []
    if step != steps.WAIT and (where, type(error)) != ("get nodes", ForbiddenError):
        assert [one.message for one in told if one.step == step and one.kept] == [
            f"{error}; asking again for up to 60 s"
        ]


def test_a_token_that_stays_refused_gets_the_message_about_the_token_and_leaves_no_bootstrap_file(
    join_refused: Joining, tmp_path: Path
) -> None:
    with pytest.raises(JoinError) as caught:
        join_refused("lasting", *[(f"create {CSRS}", UnauthorizedError())] * 40)
    assert str(caught.value).startswith("join failed at step request: the server does not accept token id ")
    assert not NodeState(tmp_path).bootstrap.exists()
    assert len(Refusing.refusals) == 40 - 16


def test_a_token_that_stays_refused_during_the_wait_gets_the_same_message(
    join_refused: Joining, tmp_path: Path
) -> None:
    with pytest.raises(JoinError) as caught:
        join_refused("lasting-wait", *[(f"list {CSRS}", UnauthorizedError())] * 40)
    assert str(caught.value).startswith("join failed at step wait: the server does not accept token id ")
    assert not NodeState(tmp_path).bootstrap.exists()


@pytest.mark.parametrize(
    ("where", "step"),
    [
        ("get nodes", steps.NAME),
        (f"create {CSRS}", steps.REQUEST),
        (f"list {CSRS}", steps.WAIT),
        ("create nodes", steps.NODE),
    ],
)
def test_the_first_401_of_a_mooring_server_ends_a_join_with_the_command_that_explains_it(
    join_refused: Joining, where: str, step: str
) -> None:
    error = UnauthorizedError()
    error.audit_id = "5e1f"
    with pytest.raises(JoinError) as caught:
        join_refused(re.sub("[^a-z]+", "-", f"final {where}"), *[(where, error)] * 40, from_mooring=True)
    assert len(Refusing.refusals) == 39
    assert caught.value.step == step
    assert str(caught.value).endswith(
        "; an administrator of a Mooring server learns the reason with: mooring auth explain 5e1f"
    )


def test_403_of_a_mooring_server_is_repeated_for_a_few_seconds(join_refused: Joining) -> None:
    error = ForbiddenError("nobody may")
    error.audit_id = "5e1f"
    with pytest.raises(JoinError, match="mooring auth explain 5e1f") as caught:
        join_refused("final-403", *[(f"create {CSRS}", error)] * 40, from_mooring=True)
    assert str(caught.value).count("5e1f") == 1
    assert 40 - len(Refusing.refusals) == 5  # after 0, 0.5, 1.5, 3.5 and 7.5 seconds


def test_a_server_that_does_not_say_what_it_is_is_asked_for_a_minute() -> None:
    async def run() -> None:
        clock = HurriedClock()
        client = ClusterClient(Cluster("", "https://127.0.0.1:1"), KubeconfigUser(""), clock)
        calls = 0

        async def call() -> None:
            nonlocal calls
            calls += 1
            raise UnauthorizedError()

        with pytest.raises(UnauthorizedError):
            await retry(clock, call, client=client)
        assert calls == 16

    asyncio.run(run())


def test_a_certificate_that_stays_refused_is_told_with_the_setting_that_is_wrong(join_refused: Joining) -> None:
    with pytest.raises(JoinError) as caught:
        join_refused("node-refused", *[("create nodes", UnauthorizedError())] * 40)
    assert "step node: the server does not accept the certificate of system:node:node-refused" in str(caught.value)
    with pytest.raises(JoinError) as caught:
        join_refused("node-refused", *[("create nodes", ForbiddenError("nobody may"))] * 40)
    assert "does not let system:node:node-refused register its Node (nobody may)" in str(caught.value)
    assert "--register-node=none" in str(caught.value)


@pytest.mark.parametrize(
    ("choice", "ready", "message"),
    [
        ("", "True", "is registered and Ready"),
        ("ready", "True", "is registered and Ready"),
        ("tainted", "False", "as NotReady, so that no Pods are placed here"),
        ("none", "", "is not registered, as --register-node=none says"),
    ],
)
def test_the_node_is_registered_as_chosen(
    join_refused: Joining, live_server: LiveServer, choice: str, ready: str, message: str
) -> None:
    name = f"choice-{choice or 'default'}"
    _, told = join_refused(name, register_node=choice)
    assert message in told[-1].message
    found = live_server.run(lambda client: client.list("nodes", field_selector=f"metadata.name={name}")).items
    conditions = [one for node in found for one in node["status"]["conditions"]]
    assert [one["status"] for one in conditions if one["type"] == "Ready"] == ([ready] if ready else [])
    taints = {
        taint["key"]
        for node in found
        for taint in (node.get("spec") or {}).get("taints", [])
        if taint["effect"] == "NoSchedule"  # a controller adds NoExecute to a Node that is not ready
    }
    assert taints == ({"node.kubernetes.io/not-ready"} if choice == "tainted" else set())


def test_joining_again_beside_a_live_kubelet_leaves_its_node_alone(
    join_refused: Joining, live_server: LiveServer
) -> None:
    join_refused("beside")
    now = SystemClock().now().strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "True", "message": "kubelet is posting ready status", "reason": "KubeletReady"}
    ready |= {"lastHeartbeatTime": now, "lastTransitionTime": now}

    async def kubelet(client: ClusterClient) -> Obj:
        node = await client.get("nodes", "beside")
        status = node["status"] | {"conditions": [ready]}
        status["nodeInfo"] = status["nodeInfo"] | {"kubeletVersion": "v1.36.2"}
        return await client.update("nodes", node | {"status": status}, subresource="status")

    before = live_server.run(kubelet)
    joined, told = join_refused("beside")
    assert joined.already_member
    assert told[-1].message == "the Node beside is kept by kubelet v1.36.2 and is left as it is"
    assert live_server.run(lambda client: client.get("nodes", "beside")) == before
