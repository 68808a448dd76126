"""Age of the views: they are confirmed by what the store said, and as old as the question.

Source: docs/adr/0079-a-view-that-judges-has-a-maximum-age.md.
"""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from mooring.registry.cache.views import MAX_AGE_SECONDS, ViewAge
from mooring.registry.reader import FRESH_WITHIN
from mooring.storage.contract import Storage
from mooring.storage.memory import MemoryStorage
from tests.registry.test_commit import Late
from tests.support.manualclock import ManualClock, settle
from tests.support.registryroom import open_room


def test_views_are_as_old_as_the_question_that_confirmed_them() -> None:
    clock = ManualClock()
    age = ViewAge(clock)
    asked = age.now()
    seen = [age.is_over]  # nothing has confirmed them yet
    clock.spend(0.75)
    age.confirm(asked)
    for more in (0.0, MAX_AGE_SECONDS - 0.75, 0.25):
        clock.spend(more)
        seen.append(age.is_over)
    assert seen == [True, False, False, True]


def test_a_slow_answer_makes_views_no_older() -> None:
    clock = ManualClock()
    age = ViewAge(clock)
    first = age.now()
    clock.spend(0.5)
    age.confirm(age.now())
    age.confirm(first)
    clock.spend(MAX_AGE_SECONDS)
    assert not age.is_over


@pytest.mark.parametrize("is_behind", [False, True])
def test_only_a_fresh_read_that_the_views_reach_confirms_them(is_behind: bool) -> None:
    async def body() -> None:
        inner = MemoryStorage()
        await inner.open()
        late = Late(inner)
        async with open_room(cast(Storage, late)) as room:
            seen = [await room.registry.reader.fresh(), room.registry.cache.is_late]
            await room.clock.advance(MAX_AGE_SECONDS + 0.5)
            assert [*seen, room.registry.cache.is_late] == [True, False, True]
            if is_behind:
                late.open.clear()
                await inner.create("/registry/namespaces/other", b"{}")
            asking = asyncio.ensure_future(room.registry.reader.fresh())
            await settle()
            assert asking.done() is not is_behind
            await room.clock.advance(FRESH_WITHIN)
            assert await asking is not is_behind
            late.open.set()
            await settle()
            assert await room.registry.reader.fresh()
            assert not room.registry.cache.is_late

    asyncio.run(body())
