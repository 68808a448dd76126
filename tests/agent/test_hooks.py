"""Hooks: when they run, what they get, and that they stop nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from mooring.agent.hooks import HOOK_SECONDS, Hooks
from mooring.agent.pairfiles import Pair
from mooring.agent.state import NodeState
from mooring.clock import SystemClock
from mooring.trust.kubeconfig import Cluster
from tests.support.manualclock import ManualClock
from tests.support.polling import eventually
from tests.support.testca import ThrowawayCA

CA = ThrowawayCA()
OTHER = ThrowawayCA("other")
TELL = (
    'printf "%s %s %s %s\\n" "$MOORING_KIND" "$MOORING_CERTIFICATE" "$MOORING_NODE_NAME" '
    '"${MOORING_TOKEN-${K3S_TOKEN-none}}" >> '
)


@pytest.fixture
def state(tmp_path: Path) -> NodeState:
    state = NodeState(tmp_path / "root")
    place(state, 0)
    state.write_ca(CA.certificate_pem)
    state.write_kubeconfig([Cluster("c", "https://api.test:6443", CA.certificate_pem)])
    return state


def place(state: NodeState, minutes: int) -> None:
    made = CA.node("m1")
    state.client.write_pair(Pair((made.certificate,), made.key), CA.now + timedelta(minutes=minutes))


def running(hooks: Hooks, scenario: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        task = asyncio.create_task(hooks.run())
        try:
            await scenario()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


async def recorded(state: NodeState, kinds: int) -> None:
    await asyncio.to_thread(eventually, lambda: len(state.record.read().hooks_done) == kinds)


def test_a_hook_runs_after_a_change_with_its_facts_and_without_a_token(
    state: NodeState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOORING_TOKEN", "abcdef.0123456789abcdef")
    monkeypatch.setenv("K3S_TOKEN", "abcdef.0123456789abcdef")
    told = tmp_path / "told"
    hooks = Hooks([TELL + str(told)], state, "m1", SystemClock())

    async def scenario() -> None:
        await recorded(state, 3)
        assert not told.exists(), "the first start runs none"
        place(state, 1)
        hooks.wake()
        await asyncio.to_thread(eventually, lambda: told.exists() and told.read_text().count("\n") == 1)
        state.write_kubeconfig([Cluster("c", "https://api.test:6443", CA.certificate_pem + OTHER.certificate_pem)])
        hooks.wake()
        await asyncio.to_thread(eventually, lambda: told.read_text().count("\n") == 2)

    running(hooks, scenario)
    assert told.read_text().splitlines() == [f"client {state.client.current} m1 none", f"ca {state.ca} m1 none"]


def test_a_hook_that_was_cut_off_runs_again_at_the_next_start(
    state: NodeState, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mooring.agent")
    told = tmp_path / "told"
    first = Hooks([f"{TELL}{told}; sleep 60"], state, "m1", SystemClock())

    async def cut_off() -> None:
        await recorded(state, 3)
        place(state, 1)
        first.wake()
        await asyncio.to_thread(eventually, told.exists)

    running(first, cut_off)
    again = Hooks([TELL + str(told)], state, "m1", SystemClock())

    async def again_and_no_more() -> None:
        # not before it ended: cut off between its line and its end, it would run once more
        await asyncio.to_thread(eventually, lambda: "hook 1 of 1 for client ended with status 0" in caplog.text)
        again.wake()

    running(again, again_and_no_more)
    running(Hooks([TELL + str(told)], state, "m1", SystemClock()), lambda: asyncio.sleep(0.05))
    assert told.read_text().count("\n") == 2


def test_a_hook_that_fails_or_takes_too_long_is_told_by_its_number_and_stops_nothing(
    state: NodeState, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mooring.agent")
    told, clock = tmp_path / "told", ManualClock()
    commands = ["exit 3 # abcdef.0123456789abcdef", "trap '' TERM; sleep 60 & wait", TELL + str(told)]
    hooks = Hooks(commands, state, "m1", clock)

    async def scenario() -> None:
        await recorded(state, 3)
        place(state, 1)
        hooks.wake()
        await asyncio.to_thread(eventually, lambda: "hook 1 of 3 for client ended with status 3" in caplog.text)
        while not told.exists():
            await clock.advance(HOOK_SECONDS / 4)
            await asyncio.sleep(0.01)
        await asyncio.to_thread(eventually, lambda: "hook 3 of 3 for client ended with status 0" in caplog.text)

    running(hooks, scenario)
    assert f"hook 2 of 3 for client was stopped: it took longer than {HOOK_SECONDS:g} s" in caplog.text
    assert "0123456789abcdef" not in caplog.text
