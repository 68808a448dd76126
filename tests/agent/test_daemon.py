"""Agent process: what it needs to start, and its end by a signal."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from mooring.agent import disk
from mooring.agent.daemon import run
from mooring.agent.join import Joined
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.discovery.polling import Polling
from mooring.trust.joinconfiguration import JoinPlan
from tests.support.joinplans import join_options, join_plan
from tests.support.liveserver import LiveServer
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
