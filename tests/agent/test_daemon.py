"""Agent process: what it needs to start, and its end by a signal."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from mooring.agent import certificaterequest, daemon, disk
from mooring.agent.daemon import Agent, run
from mooring.agent.join import Joined, join
from mooring.agent.registration import CertificateRefusedError
from mooring.agent.state import NodeState
from mooring.agent.steps import REQUEST, WAIT, JoinError, Progress
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.servicenotifier import ServiceNotifier
from mooring.trust.bootstraptoken.restrictions import TOKEN_USED_UP
from mooring.trust.discovery.fetch import Polling
from mooring.trust.joinconfiguration import JoinPlan
from tests.agent.test_certificaterequest import decided, pending
from tests.agent.test_certificaterequest import plan as manual_plan
from tests.support.joinplans import join_options, join_plan
from tests.support.liveserver import LiveServer
from tests.support.manualclock import HurriedClock
from tests.support.ports import free_port


def plan(endpoint: str, token: str, pin: str, name: str) -> JoinPlan:
    return join_plan(name, (endpoint,), Secret(token), pins=(pin,))


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_without_a_certificate_it_needs_the_flags_of_join(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        asyncio.run(run(None, join_options(root=tmp_path)))
    assert str(caught.value) == ("this machine is not a member of a cluster: give the flags of `mooring join` as well")


def test_an_empty_file_of_a_membership_is_named(tmp_path: Path) -> None:
    """As after a loss of power: it is no machine that never was a member."""
    options = join_options(root=tmp_path)
    disk.write(options.state.kubeconfig, b"")
    with pytest.raises(ConfigError) as caught:
        asyncio.run(run(None, options))
    begin = f"the files of this membership cannot be used: {options.state.kubeconfig}: "
    assert str(caught.value).startswith(begin)
    assert "; join again with a token: `mooring join " in str(caught.value)


def test_a_signal_ends_a_join_that_is_under_way(tmp_path: Path) -> None:
    wanted = plan(f"127.0.0.1:{free_port()}", "abcdef.0123456789abcdef", "sha256:" + "0" * 64, "m1")

    async def scenario() -> None:
        options = join_options(root=tmp_path, polling=Polling())
        waiting = asyncio.Event()
        agent = asyncio.create_task(run(wanted, options, report=lambda progress: waiting.set()))
        await waiting.wait()
        terminate()
        await asyncio.wait_for(agent, 10)

    asyncio.run(scenario())


def test_with_a_certificate_it_needs_no_token_and_beats(live_server: LiveServer, tmp_path: Path) -> None:
    token = live_server.create_token()
    wanted = plan(live_server.endpoint, token.reveal(), live_server.pin, "daemon")
    members: list[Joined] = []

    def on_member(joined: Joined) -> None:
        members.append(joined)
        terminate()

    asyncio.run(run(wanted, join_options(root=tmp_path), on_member=on_member))
    asyncio.run(run(None, join_options(root=tmp_path), on_member=on_member))
    assert [(one.node_name, bool(one.request_name)) for one in members] == [("daemon", True), ("daemon", False)]


async def eventually(condition: Callable[[], object]) -> None:
    for _ in range(1200):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(condition)


@pytest.mark.parametrize("end", ["denied", "deleted"])
def test_a_machine_whose_request_is_denied_or_deleted_stays_and_sends_no_other_for_an_hour(
    manual_approval: LiveServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    """A service manager would start it again otherwise: one request every ten seconds."""
    name, options = f"stays-{end}", join_options(root=tmp_path, polling=Polling(attempts=1), certificate_timeout=60.0)
    token = manual_approval.create_token()
    wanted, with_token = (
        manual_plan(manual_approval, name),
        plan(manual_approval.endpoint, token.reveal(), manual_approval.pin, name),
    )

    def end_request() -> None:
        request = pending(tmp_path, name).name
        if end == "denied":
            decided(manual_approval, request, "Denied", "not this machine")
        else:
            manual_approval.run(lambda client: client.delete(certificaterequest.PLURAL, request))

    async def scenario() -> None:
        members: list[Joined] = []
        done: list[str] = []

        def report(progress: Progress) -> None:
            if progress.seconds is not None:
                done.append(progress.step)

        agent = asyncio.create_task(run(wanted, options, report=report, on_member=members.append))
        await eventually(lambda: REQUEST in done)
        await asyncio.to_thread(end_request)
        await eventually(lambda: any(f"was {end}" in one.message for one in caplog.records))
        assert NodeState(tmp_path).read_pending_key() is None, "no other request is under way"
        assert not agent.done()
        await join(with_token, options)
        await eventually(lambda: members)
        terminate()
        await asyncio.wait_for(agent, 60)

    with caplog.at_level(logging.INFO, "mooring.agent"):
        asyncio.run(scenario())
    assert len([one for one in caplog.records if f"was {end}" in one.message]) == 1


def test_a_machine_whose_request_nobody_decides_waits_on_with_the_same_request(
    manual_approval: LiveServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its service would fail each five minutes otherwise."""
    wanted = manual_plan(manual_approval, "waits-on")
    options = join_options(root=tmp_path, polling=Polling(attempts=1), certificate_timeout=0.2)

    async def scenario() -> None:
        members: list[Joined] = []
        attempts: list[str] = []

        def report(progress: Progress) -> None:
            if progress.step == REQUEST and progress.seconds is not None:
                attempts.append(progress.message)

        agent = asyncio.create_task(run(wanted, options, report=report, on_member=members.append))
        await eventually(lambda: len(attempts) > 1)
        request = pending(tmp_path, "waits-on").name
        assert request in attempts[0]
        assert attempts[1].startswith(f"taken up {request}, ")
        await asyncio.to_thread(decided, manual_approval, request, "Approved", "this machine", "ByHand")
        await eventually(lambda: members)
        terminate()
        await asyncio.wait_for(agent, 60)

    with caplog.at_level(logging.INFO, "mooring.agent"):
        asyncio.run(scenario())
    assert len([one for one in caplog.records if "was not approved within" in one.message]) == 1


def test_a_machine_whose_token_is_used_up_ends(manual_approval: LiveServer, tmp_path: Path) -> None:
    """Only another token helps, and it comes with another start."""
    wanted, done = manual_plan(manual_approval, "used-up"), list[str]()

    async def scenario() -> None:
        agent = asyncio.create_task(
            run(wanted, join_options(root=tmp_path), report=lambda progress: done.append(progress.step))
        )
        await eventually(lambda: WAIT in done)
        request = pending(tmp_path, "used-up").name
        await asyncio.to_thread(decided, manual_approval, request, "Denied", "it made 2 of 2 joins", TOKEN_USED_UP)
        with pytest.raises(JoinError, match="was denied"):
            await asyncio.wait_for(agent, 60)

    asyncio.run(scenario())


class Later(HurriedClock):
    """The clock of a machine two years later."""

    def now(self) -> datetime:
        return super().now() + timedelta(days=2 * 365)


class Heard(ServiceNotifier):
    """Keeps what the service manager hears."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[str] = []

    def status(self, text: str) -> None:
        self.states.append(text)

    def ready(self, status: str = "") -> None:
        self.states.append(f"READY {status}")


def test_the_status_of_an_agent_without_a_valid_certificate_names_its_end_while_the_server_is_away(
    live_server: LiveServer, tmp_path: Path
) -> None:
    token, heard = live_server.create_token(), Heard()
    options = join_options(root=tmp_path, polling=Polling(attempts=1))
    wanted = plan(live_server.endpoint, token.reveal(), live_server.pin, "outlived")

    async def scenario() -> None:
        joined = await join(wanted, options)
        kubeconfig = joined.files.kubeconfig
        away = kubeconfig.read_text().replace(live_server.endpoint, f"127.0.0.1:{free_port()}")
        kubeconfig.write_text(away)
        agent = asyncio.create_task(run(None, options, Later(), notifier=heard))
        await eventually(lambda: heard.states)
        terminate()
        await asyncio.wait_for(agent, 60)

    asyncio.run(scenario())
    assert all(one.startswith("the client certificate expired at 20") for one in heard.states)
    assert "nothing answers there" in heard.states[0] or "refused" in heard.states[0]


class Slept(HurriedClock):
    """The clock of a machine that is two years later once `slept` is true."""

    slept = False

    def now(self) -> datetime:
        return super().now() + (timedelta(days=2 * 365) if self.slept else timedelta())


@pytest.mark.parametrize(
    ("knows", "has_token"),
    [
        pytest.param(True, False, id="its clock knows"),
        pytest.param(True, True, id="and it still has the token of its join"),
        pytest.param(False, False, id="its clock is behind for a time"),
    ],
)
def test_a_refusal_of_a_certificate_that_expired_while_the_machine_slept_leads_to_the_way_back(
    live_server: LiveServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    knows: bool,
    has_token: bool,
) -> None:
    """The server refuses the first heartbeat after the sleep before the renewal looks at the clock again."""
    monkeypatch.setattr(daemon, "ASK_SECONDS", 0.05)
    token, heard, clock = live_server.create_token(), Heard(), Slept()
    options = join_options(root=tmp_path, polling=Polling(attempts=1))
    name, away = f"slept-{knows}-{has_token}".lower(), f"127.0.0.1:{free_port()}"
    wanted, again = (plan(at, token.reveal(), live_server.pin, name) for at in (live_server.endpoint, away))
    rejected = "the server rejects the certificate of system:node:"

    async def refused() -> None:
        clock.slept = knows
        raise CertificateRefusedError("slept")

    async def unanswered(*arguments: object, **options: object) -> None:
        clock.slept = True
        raise ConfigError("no answer")

    monkeypatch.setattr(Agent, "_tasks", lambda *arguments: [refused()])
    monkeypatch.setattr(daemon, "check_membership", unanswered)

    async def scenario() -> None:
        joined = await join(wanted, options)
        kubeconfig = joined.files.kubeconfig
        kubeconfig.write_text(kubeconfig.read_text().replace(live_server.endpoint, away))
        agent = asyncio.create_task(run(again if has_token else None, options, clock, notifier=heard))
        await eventually(lambda: any(one.startswith("the client certificate expired at 20") for one in heard.states))
        terminate()
        await asyncio.wait_for(agent, 60)

    with caplog.at_level(logging.WARNING, "mooring.agent"):
        asyncio.run(scenario())
    assert any(one.startswith("the client certificate expired at 20") for one in heard.states)
    assert any(rejected in one for one in caplog.messages) is not knows
