"""Agent of a member that joined the k3s way: renewals, CAs and servers that change, and the end of a membership.

The supervisor is simulated over real connections; the agent's clock is the test's.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from mooring.agent import leave, node, registration
from mooring.agent.k3s import process
from mooring.agent.k3s.files import GivenToken
from mooring.agent.k3s.membership import AgentPlan, SupervisedMember
from mooring.agent.k3s.process import SupervisedAgent, SupervisorRenewal
from mooring.agent.k3s.settings import K3sJoinSettings
from mooring.agent.loadbalancer import LoadBalancer
from mooring.agent.steps import JoinError
from mooring.client.http.connection import ConnectionPool, ResponseStream
from mooring.errors import ConfigError
from mooring.pki.keys import public_key_fingerprint
from mooring.pki.x509 import names
from mooring.secret import Secret
from mooring.trust.discovery.fetch import Polling
from mooring.trust.k3s import identity
from mooring.trust.k3s.exchanges import KUBELET, WANTED
from tests.support.manualclock import ManualClock, settle
from tests.support.ports import free_port
from tests.support.supervisorpeer import Asked, SupervisorPeer, supervisor_peer
from tests.support.testca import ThrowawayCA

PATIENCE = 30.0
MINUTE = 60.0
LIFETIME = timedelta(minutes=20)
"""Renewals come after about a quarter of an hour, because certificates begin five minutes earlier."""


@pytest.fixture
def peer() -> Iterator[SupervisorPeer]:
    with supervisor_peer() as peer:
        peer.lifetime = LIFETIME
        yield peer


def plan(peer: SupervisorPeer, root: Path, file: Path | None = None) -> AgentPlan:
    settings = K3sJoinSettings(
        server=(peer.url,), node_name="worker", root=str(root), node_ip=("192.0.2.7",), register_node=registration.NONE
    )
    token = GivenToken(None if file else Secret(peer.token), file)
    return AgentPlan(settings=settings, token=token, polling=Polling(attempts=1))


class Traffic:
    """Counts the requests under way, so that the test's clock stands still meanwhile."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.requests = 0
        opened = ConnectionPool.stream

        @asynccontextmanager
        async def stream(*arguments: Any) -> AsyncIterator[ResponseStream]:
            self.requests += 1
            try:
                async with opened(*arguments) as found:
                    yield found
            finally:
                self.requests -= 1

        patched.setattr(ConnectionPool, "stream", stream)

    async def quiet(self) -> None:
        """Return when no request is under way and none follows at once."""
        await settle()
        while self.requests:
            while self.requests:
                await asyncio.sleep(0.001)
            await settle()


class Running:
    """An agent that runs on the test's clock."""

    def __init__(self, plan: AgentPlan, peer: SupervisorPeer, balancer: LoadBalancer | None = None) -> None:
        self.clock = ManualClock(peer.ca.now)
        peer.passed = lambda: self.clock.now() - peer.ca.now
        self.members: list[SupervisedMember] = []
        self.files = plan.files()
        self.agent = SupervisedAgent(
            plan,
            self.clock,
            lambda progress: None,
            on_member=self.members.append,
            balancer=balancer,
            draw=lambda: 0.5,
        )

    async def until(self, condition: Callable[[], bool], step: float = MINUTE) -> None:
        """Let the agent's time pass in steps until a condition holds."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "the agent did not get there"
            await self.clock.advance(step)
            await self.traffic.quiet()
            await asyncio.sleep(0)
            if self.task.done():
                self.task.result()

    @property
    def keys(self) -> dict[str, str]:
        pairs = {name: files.read_pair() for name, files in self.files.pairs.items()}
        return {name: public_key_fingerprint(pair.key) for name, pair in pairs.items() if pair is not None}

    def run(self, scenario: Callable[[], Awaitable[None]], *, joins: bool = True) -> None:
        """Run a scenario of a member, or with `joins` false of a machine that does not join by itself."""
        with pytest.MonkeyPatch.context() as patched:
            self.traffic = Traffic(patched)
            asyncio.run(self._run(scenario, joins))

    async def _run(self, scenario: Callable[[], Awaitable[None]], joins: bool) -> None:
        self.task = asyncio.ensure_future(self.agent.run())
        try:
            if joins:
                await self.until(lambda: bool(self.members), 0.0)
            await scenario()
        finally:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)


def test_every_certificate_is_renewed_in_the_background_with_a_new_key(peer: SupervisorPeer, tmp_path: Path) -> None:
    running = Running(plan(peer, tmp_path), peer)

    async def scenario() -> None:
        before, asked = running.keys, len(peer.asked)
        began = running.clock.now()
        await running.until(lambda: len(peer.issued) == 2 * len(WANTED))
        await running.until(lambda: not set(running.keys.values()) & set(before.values()), step=0.0)
        assert timedelta(minutes=10) < running.clock.now() - began < LIFETIME
        posted = [one for one in peer.asked[asked:] if one.method == "POST"]
        assert {one.user for one in posted} == {"system:node:worker"}
        assert {one.authorization for one in posted} == {""}

    running.run(scenario)


@pytest.mark.parametrize(("status", "is_explained"), [(503, False), (401, True)])
def test_a_renewal_that_fails_is_repeated_and_the_pair_in_use_stays(
    peer: SupervisorPeer, tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int, is_explained: bool
) -> None:
    running = Running(plan(peer, tmp_path), peer)

    async def scenario() -> None:
        before = running.keys
        failures = []

        def fail(asked: Asked) -> tuple[int, bytes] | None:
            if asked.method != "POST":
                return None
            failures.append(asked.path)
            return status, b""

        peer.override = fail
        await running.until(lambda: failures.count(identity.CLIENT_KUBELET) > 3, 8.0)
        assert running.keys == before
        peer.override = lambda asked: None
        await running.until(
            lambda: len(running.keys) == 4 and not set(running.keys.values()) & set(before.values()), 8.0
        )

    with caplog.at_level(logging.WARNING, "mooring.agent"):
        running.run(scenario)
    warnings = [one for one in caplog.messages if "client-kubelet certificate could not be renewed" in one]
    assert len(warnings) == 1, "one line for failures that are equal"
    assert ("with: mooring auth explain " in warnings[0]) is is_explained


def test_a_certificate_that_the_server_issued_and_rejects_is_explained(
    peer: SupervisorPeer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running = Running(plan(peer, tmp_path), peer)
    unauthorized = b'{"kind": "Status", "apiVersion": "v1", "code": 401, "reason": "Unauthorized"}'

    async def scenario() -> None:
        before = running.keys
        peer.override = lambda asked: (401, unauthorized) if asked.path.startswith("/api/") else None
        await running.until(lambda: any("has just issued" in one for one in caplog.messages), 8.0)
        assert running.keys["client-kubelet"] == before["client-kubelet"]

    with caplog.at_level(logging.WARNING, "mooring.agent"):
        running.run(scenario)
    (warning, *_) = [one for one in caplog.messages if "has just issued" in one]
    assert "with: mooring auth explain " in warning


def refuse(peer: SupervisorPeer, status: int, message: str) -> None:
    """Let the supervisor refuse certificates with this message, as Mooring does it."""
    body = json.dumps({"kind": "Status", "apiVersion": "v1", "code": status, "message": message}).encode()
    peer.override = lambda asked: (status, body) if asked.method == "POST" else None


DENIED = "the certificate request k3s-kubelet-serving-1 was refused: not this machine"


@pytest.mark.parametrize(
    ("status", "message", "most"),
    [
        pytest.param(403, DENIED, 12, id="denied"),
        pytest.param(400, DENIED, 12, id="denied for its names"),
        pytest.param(503, "the certificate request k3s-kubelet-serving-1 waits for a decision", 120, id="held"),
    ],
)
def test_a_machine_whose_request_is_denied_or_waits_stays_says_so_once_and_joins_after_an_approval(
    peer: SupervisorPeer, tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int, message: str, most: int
) -> None:
    running = Running(plan(peer, tmp_path), peer)
    peer.lifetime = timedelta(days=365)
    refuse(peer, status, message)

    async def scenario() -> None:
        await running.until(lambda: running.clock.monotonic() > 3600, 32.0)
        asked = peer.posted(identity.SERVING_KUBELET)
        assert 5 < len(asked) <= most
        keys = [x509.load_der_x509_csr(one.body).public_key() for one in asked]
        assert all(key == keys[0] for key in keys)
        assert len([one for one in caplog.messages if message in one]) == 1
        refuse(peer, 403, "another reason")
        await running.until(lambda: "another reason" in caplog.text)
        peer.override = lambda asked: None
        await running.until(lambda: bool(running.members))

    with caplog.at_level(logging.WARNING, "mooring.agent"):
        running.run(scenario, joins=False)
    assert len([one for one in caplog.messages if "another reason" in one]) == 1


def test_another_token_in_the_file_ends_the_wait_of_a_machine_that_was_denied(
    peer: SupervisorPeer, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(peer.token)
    running = Running(plan(peer, tmp_path, file), peer)
    refuse(peer, 403, DENIED)

    async def scenario() -> None:
        await running.until(lambda: len(peer.posted(identity.SERVING_KUBELET)) == 11)
        peer.override = lambda asked: None
        await running.clock.advance(MINUTE)
        await running.traffic.quiet()
        assert not running.members, "the next request follows after 34 minutes"
        file.write_text(peer.bootstrap_token)
        await running.until(lambda: bool(running.members), 2.0)

    running.run(scenario, joins=False)


def test_a_wrong_node_password_ends_the_process(peer: SupervisorPeer, tmp_path: Path) -> None:
    running = Running(plan(peer, tmp_path), peer)
    refuse(peer, 403, "unable to verify password for node worker")

    async def scenario() -> None:
        with pytest.raises(JoinError, match="unable to verify password"):
            await running.until(lambda: False)

    running.run(scenario, joins=False)


def test_a_renewal_that_is_refused_is_asked_for_after_growing_pauses_and_told_once(
    peer: SupervisorPeer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running = Running(plan(peer, tmp_path), peer)
    peer.lifetime = timedelta(minutes=30)

    async def scenario() -> None:
        refuse(peer, 403, DENIED)
        before = len(peer.posted(identity.CLIENT_KUBELET))
        await running.until(lambda: len(peer.posted(identity.CLIENT_KUBELET)) > before, 600.0)
        began = running.clock.monotonic()
        await running.until(lambda: running.clock.monotonic() - began > 300, 20.0)
        assert 5 < len(peer.posted(identity.CLIENT_KUBELET)) - before <= 8, "13 with pauses of 32 s"

    with caplog.at_level(logging.WARNING, "mooring.agent"):
        running.run(scenario)
    assert len([one for one in caplog.messages if "client-kubelet certificate could not be renewed" in one]) == 1


def at_address(patched: pytest.MonkeyPatch, address: str) -> None:
    patched.setattr(node, "address_towards", lambda cluster: address)


@pytest.mark.parametrize("names_addresses", [True, False], ids=["a server that names them", "one that does not"])
def test_the_serving_certificate_follows_the_address_of_the_machine(
    peer: SupervisorPeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names_addresses: bool
) -> None:
    at_address(monkeypatch, "192.0.2.50")
    given = plan(peer, tmp_path)
    running = Running(replace(given, settings=replace(given.settings, node_ip=())), peer)
    peer.lifetime, peer.names_addresses = timedelta(days=1), names_addresses

    def addresses() -> list[str]:
        pair = running.files.pairs["serving-kubelet"].read_pair()
        assert pair is not None
        return list(map(str, names.alternative_names(pair.leaf.extensions).ips))

    async def scenario() -> None:
        assert addresses() == (["192.0.2.50"] if names_addresses else [])
        before = running.keys
        at_address(monkeypatch, "")
        await running.clock.advance(MINUTE)
        at_address(monkeypatch, "192.0.2.60")
        asked = peer.posted(identity.SERVING_KUBELET)
        await running.until(lambda: len(peer.posted(identity.SERVING_KUBELET)) > len(asked))
        await running.until(lambda: running.keys["serving-kubelet"] != before["serving-kubelet"], step=0.0)
        assert peer.posted(identity.SERVING_KUBELET)[-1].node_ip == "192.0.2.60"
        assert addresses() == (["192.0.2.60"] if names_addresses else [])
        requests = len(peer.issued)
        for _ in range(5):
            await running.clock.advance(MINUTE)
            await running.traffic.quiet()
        assert len(peer.issued) == requests, "an address that the server leaves out is requested once"
        assert {**running.keys, "serving-kubelet": ""} == {**before, "serving-kubelet": ""}

    running.run(scenario)


def test_an_address_that_was_given_stays(peer: SupervisorPeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(plan(peer, tmp_path), peer)
    peer.lifetime = timedelta(days=1)
    at_address(monkeypatch, "192.0.2.60")

    async def scenario() -> None:
        await running.until(lambda: running.clock.now() - peer.ca.now > timedelta(minutes=5))
        assert [one.node_ip for one in peer.posted(identity.SERVING_KUBELET)] == ["192.0.2.7"]

    running.run(scenario)


def test_servers_that_the_cluster_names_are_learned_by_the_load_balancer(peer: SupervisorPeer, tmp_path: Path) -> None:
    balancer = LoadBalancer(0, [peer.url], ManualClock(), tmp_path / "list.json")
    running = Running(plan(peer, tmp_path), peer, balancer)
    peer.apiservers = [f"127.0.0.1:{peer.port}", "192.0.2.9:6443"]

    async def scenario() -> None:
        assert "192.0.2.9:6443" in balancer.servers.known, "the join has read them"
        peer.apiservers.append("192.0.2.10:6443")
        await running.until(lambda: "192.0.2.10:6443" in balancer.servers.known)
        config = (running.files.directory / "kubelet.kubeconfig").read_text()
        assert f"server: {balancer.url}" in config

    running.run(scenario)
    assert "192.0.2.10:6443" in json.loads((tmp_path / "list.json").read_text())["ServerAddresses"]


def test_new_cas_are_followed_and_a_retired_one_leads_to_an_early_renewal(peer: SupervisorPeer, tmp_path: Path) -> None:
    running = Running(plan(peer, tmp_path), peer)
    other = ThrowawayCA("the next CA")
    peer.lifetime = timedelta(hours=10)

    async def scenario() -> None:
        both = peer.ca.certificate_pem + other.certificate_pem
        peer.override = lambda asked: (200, both) if asked.path in (identity.SERVER_CA, identity.CLIENT_CA) else None
        await running.until(lambda: running.files.read_server_ca() == both and running.files.read_ca() == both)
        assert len(peer.issued) == len(WANTED), "a CA that is added renews nothing"
        peer.override = lambda asked: (200, other.certificate_pem) if asked.path == identity.CLIENT_CA else None
        before = len(peer.posted(identity.CLIENT_KUBELET))
        began = running.clock.now()
        await running.until(lambda: len(peer.posted(identity.CLIENT_KUBELET)) > before)
        assert running.clock.now() - began < timedelta(hours=2)

    running.run(scenario)


def test_the_deletion_of_the_node_ends_the_process_without_a_token_file(peer: SupervisorPeer, tmp_path: Path) -> None:
    running = Running(plan(peer, tmp_path), peer)

    async def scenario() -> None:
        peer.deleted_nodes.add("worker")
        with pytest.raises(JoinError, match="start the agent with a valid token to join again"):
            await running.until(lambda: False)

    running.run(scenario)


@pytest.mark.parametrize("has_file", [False, True], ids=["a member", "waiting for a token"])
def test_an_agent_ends_when_its_files_are_removed_and_does_not_join_again_with_its_token(
    has_file: bool, peer: SupervisorPeer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    file.write_text(peer.token)
    running = Running(plan(peer, tmp_path, file if has_file else None), peer)

    async def scenario() -> None:
        if has_file:
            peer.deleted_nodes.add("worker")
            await running.until(lambda: any("Write a valid token to" in one for one in caplog.messages))
        found = leave.of_k3s(running.files)
        assert found is not None
        leave.remove(found)
        file.write_text(peer.token)
        with pytest.raises(
            ConfigError, match=r"this machine has left its cluster: .* were removed while the agent ran"
        ):
            await running.until(lambda: len(running.members) == 2)

    running.run(scenario)
    assert leave.of_k3s(running.files) is None


def test_after_the_deletion_of_the_node_a_token_in_the_file_joins_again(
    peer: SupervisorPeer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    file.write_text(peer.token)
    running = Running(plan(peer, tmp_path, file), peer)

    async def scenario() -> None:
        assert file.read_text() == ""
        before = running.keys
        peer.deleted_nodes.add("worker")
        await running.until(lambda: any("Write a valid token to" in one for one in caplog.messages))
        asked = len(peer.asked)
        for _ in range(10):
            await running.clock.advance(MINUTE)
            await running.traffic.quiet()
        assert len(peer.asked) <= asked + 1, "the machine sends nothing more than what was under way"
        file.write_text("K10x")
        await running.until(lambda: any("the token in" in one for one in caplog.messages), 2.0)
        file.write_text(peer.bootstrap_token)
        await running.until(lambda: len(running.members) == 2, 2.0)
        assert file.read_text() == ""
        assert not set(running.keys.values()) & set(before.values())

    with caplog.at_level(logging.ERROR, "mooring.agent"):
        running.run(scenario)


def test_a_machine_whose_certificate_expired_while_it_slept_may_not_come_back_to_k3s_and_waits_for_a_token(
    peer: SupervisorPeer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    file.write_text(peer.token)
    running = Running(plan(peer, tmp_path, file), peer)
    unauthorized = b'{"kind": "Status", "apiVersion": "v1", "code": 401, "reason": "Unauthorized"}'

    async def scenario() -> None:
        peer.override = lambda asked: (401, unauthorized) if "certificatesigningrequests" in asked.path else None
        running.clock.spend(2 * LIFETIME.total_seconds())
        await running.until(lambda: any("does not let this machine come back" in one for one in caplog.messages), 2.0)
        file.write_text(peer.bootstrap_token)
        await running.until(lambda: len(running.members) == 2, 2.0)

    with caplog.at_level(logging.ERROR, "mooring.agent"):
        running.run(scenario)


def test_a_refusal_of_a_certificate_that_expired_while_the_machine_slept_leads_to_the_way_back(
    peer: SupervisorPeer, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server refuses the first heartbeat after the sleep before the renewal looks at the clock again."""
    file = tmp_path / "token"
    file.write_text(peer.token)
    running = Running(plan(peer, tmp_path, file), peer)
    unauthorized = b'{"kind": "Status", "apiVersion": "v1", "code": 401, "reason": "Unauthorized"}'

    async def refused(membership: object) -> None:
        running.clock.spend(2 * LIFETIME.total_seconds())
        raise registration.CertificateRefusedError("worker")

    async def scenario() -> None:
        await running.until(lambda: any("does not let this machine come back" in one for one in caplog.messages), 2.0)

    monkeypatch.setattr(process._Membership, "run", refused)
    peer.override = lambda asked: (401, unauthorized) if "certificatesigningrequests" in asked.path else None
    with caplog.at_level(logging.ERROR, "mooring.agent"):
        running.run(scenario)
    assert not any("The heartbeat has ended" in one for one in caplog.messages)


def test_an_early_renewal_is_asked_for_once(peer: SupervisorPeer, tmp_path: Path) -> None:
    running = Running(plan(peer, tmp_path), peer)

    async def scenario() -> None:
        draws = iter([0.5, 0.5, 0.9])  # for the time of the renewal, for the early one, for nothing
        (member,) = running.members

        async def on_renewed() -> None:
            return

        renewal = SupervisorRenewal(KUBELET, lambda: member, running.clock, on_renewed, lambda: next(draws))
        renewal.renew_early()
        renewal.renew_early()
        assert next(draws) == 0.9

    running.run(scenario)


def test_a_signal_ends_a_join_that_waits_for_its_server(tmp_path: Path) -> None:
    settings = K3sJoinSettings(
        server=(f"https://127.0.0.1:{free_port()}",), node_name="worker", root=str(tmp_path), lb_server_port=0
    )
    given = AgentPlan(settings=settings, token=GivenToken(Secret("password")))

    async def scenario() -> None:
        waiting = asyncio.Event()
        task = asyncio.create_task(process.run(given, report=lambda progress: waiting.set()))
        await waiting.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(task, 10)

    asyncio.run(scenario())
