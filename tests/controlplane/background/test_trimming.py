"""Memory that clients left free goes back to the system: when, and what is asked of the C library."""

from __future__ import annotations

import asyncio
import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest

from mooring.controlplane.maintenance import (
    LOOK_SECONDS,
    MIN_GROWTH_BYTES,
    Trimming,
    malloc_trim,
    resident_bytes,
    trim_forever,
)
from tests.support.manualclock import ManualClock, settle

MIB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "due"),
    [
        pytest.param([63, 63, 63], [False] * 3, id="idle"),
        pytest.param([70, 70], [False] * 2, id="growth that is not worth it"),
        pytest.param([107, 107], [False, True], id="clients came, and left"),
        pytest.param([90, 107, 120], [False] * 3, id="still growing"),
        pytest.param([107, 100], [False, True], id="a little was given back by itself"),
        pytest.param([30, 50, 50], [False, False, True], id="less than at the start is the new measure"),
    ],
)
def test_when_memory_is_given_back(sizes: list[int], due: list[bool]) -> None:
    trimming = Trimming(63 * MIB)
    assert [trimming.is_due(size * MIB) for size in sizes] == due


def test_a_large_heap_is_looked_through_less_often() -> None:
    trimming = Trimming(800 * MIB)
    assert [trimming.is_due(size * MIB) for size in (950, 950, 1000, 1000)] == [False, False, False, True]


def test_what_is_left_is_the_measure_of_the_next_time() -> None:
    trimming = Trimming(63 * MIB)
    trimming.is_due(107 * MIB)
    assert trimming.is_due(107 * MIB)
    trimming.done(100 * MIB)
    assert [trimming.is_due(107 * MIB) for _ in range(3)] == [False] * 3, "it would free nothing more"


def test_after_one_that_was_worth_it_comes_one_more_for_what_was_freed_meanwhile() -> None:
    trimming = Trimming(63 * MIB)
    assert [trimming.is_due(size * MIB) for size in (387, 387)] == [False, True]
    trimming.done(196 * MIB)
    assert [trimming.is_due(size * MIB) for size in (200, 195)] == [False, True], "not while it grows"
    trimming.done(190 * MIB)
    assert not trimming.is_due(190 * MIB)


def test_the_system_is_asked_at_every_look() -> None:
    async def story() -> None:
        clock = ManualClock()
        sizes = iter([63, 107, 107, 100, 100, 100])
        given_back: list[str] = []
        task = asyncio.ensure_future(
            trim_forever(clock, lambda: next(sizes) * MIB, lambda: given_back.append("free pages"))
        )
        for _ in range(2):
            await clock.advance(LOOK_SECONDS)
        while clock.sleepers == 0:  # the thread has not come back
            await asyncio.sleep(0.001)
        assert given_back == ["free pages"]
        await clock.advance(LOOK_SECONDS)
        assert given_back == ["free pages"]
        task.cancel()
        await settle()

    asyncio.run(story())


def test_where_nothing_can_be_done_nothing_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resident_bytes(tmp_path / "statm") is None
    asyncio.run(trim_forever(ManualClock(), lambda: None))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    assert malloc_trim() is None
    asyncio.run(trim_forever(ManualClock()))


@pytest.mark.skipif(malloc_trim() is None or resident_bytes() is None, reason="needs glibc and /proc")
def test_free_pages_between_blocks_that_stay_go_back() -> None:
    trim = malloc_trim()
    assert trim is not None
    blocks = [bytes(2000) for _ in range(20_000)]
    kept = blocks[::100]
    full = resident_bytes() or 0
    del blocks
    trim()
    assert (resident_bytes() or 0) < full - MIN_GROWTH_BYTES
    assert kept
