"""Test the lag of the event loop: `/readyz` fails while it is late, and passes soon after."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mooring.server.metrics import INTERVAL_SECONDS, MAX_LATE_SECONDS, SAMPLES, EventLoopLag
from tests.support.serverroom import Server, in_server

LATE, IN_TIME = MAX_LATE_SECONDS * 2, 0.001


@pytest.mark.parametrize(
    ("looks", "is_late"),
    [
        pytest.param([], False, id="before the first look"),
        pytest.param([IN_TIME] * SAMPLES, False, id="in time"),
        pytest.param([10.0], True, id="a start that is late"),
        pytest.param([*[IN_TIME] * SAMPLES, 60.0], False, id="one long turn, such as a suspended machine"),
        pytest.param([*[IN_TIME] * SAMPLES, *[LATE] * 5], True, id="late for half of the time"),
        pytest.param([*[LATE] * SAMPLES, *[IN_TIME] * 4], True, id="in time for a moment"),
        pytest.param([*[LATE] * SAMPLES, *[IN_TIME] * 5], False, id="recovered"),
        pytest.param([MAX_LATE_SECONDS] * SAMPLES, False, id="just not late"),
        pytest.param([-1.0] * SAMPLES, False, id="a timer that comes early"),
    ],
)
def test_what_is_late(looks: list[float], is_late: bool) -> None:
    measured = EventLoopLag()
    for seconds in looks:
        measured.note(seconds)
    assert measured.is_late == is_late
    assert measured.seconds >= 0


def test_a_timer_that_recurs_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[tuple[float, Any]] = []
    cancelled: list[str] = []

    def call_at(due: float, call: Any, *arguments: Any) -> Any:
        timers.append((due, lambda: call(*arguments)))
        return SimpleNamespace(cancel=lambda: cancelled.append("timer"))

    loop: Any = SimpleNamespace(now=100.0, call_at=call_at)
    loop.time = lambda: loop.now
    monkeypatch.setattr("mooring.server.metrics.asyncio.get_running_loop", lambda: loop)
    measured = EventLoopLag()
    measured.stop()
    measured.start()
    for late in (0.0, 3.0, 0.25):
        due, look = timers.pop()
        assert due == loop.now + INTERVAL_SECONDS
        loop.now = due + late
        look()
    assert measured.seconds == 0.25
    measured.stop()
    assert cancelled == ["timer"]


@in_server
async def test_a_server_whose_loop_is_late_is_not_ready_but_alive(server: Server) -> None:
    for _ in range(SAMPLES):
        server.assembly.http.event_loop_lag.note(LATE)
    assert (await server.get("/readyz")).status == 500
    assert b"[-]event-loop failed" in (await server.get("/readyz")).body
    assert (await server.get("/readyz/event-loop")).status == 500
    assert [(await server.get(path)).status for path in ("/livez", "/healthz")] == [200, 200], "a restart does not help"
    for _ in range(SAMPLES):
        server.assembly.http.event_loop_lag.note(IN_TIME)
    assert (await server.get("/readyz")).status == 200


def test_the_loop_of_a_server_is_measured_until_it_stops() -> None:
    async def story() -> None:
        measured = EventLoopLag()
        measured.start()
        loop = asyncio.get_running_loop()
        real = loop.time
        loop.time = lambda: real() + 10 * INTERVAL_SECONDS  # type: ignore[method-assign] # time is a value in tests
        while not measured.seconds:
            await asyncio.sleep(0)
        assert measured.is_late
        measured.stop()

    asyncio.run(story())
