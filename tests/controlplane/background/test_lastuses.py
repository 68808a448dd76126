"""The label that says when a Secret's token was used last, written behind the requests.

Source: docs/protocol/service-account-tokens.md#legacy-tokens.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from mooring.apimachinery.schema import Obj
from mooring.authn.lastuses import LAST_USED, LastUses
from mooring.controlplane.maintenance import RECORD_SECONDS, record_forever
from tests.support.manualclock import settle
from tests.support.registryroom import Room, in_room

SECRET: Obj = {
    "metadata": {"name": "s", "annotations": {"kubernetes.io/service-account.name": "sa"}, "labels": {"mine": "1"}},
    "type": "kubernetes.io/service-account-token",
}


@in_room
async def test_the_day_is_written_as_a_label_beside_the_others(room: Room) -> None:
    made = await room.create("secrets", SECRET)
    uses = LastUses()
    recorder = asyncio.create_task(record_forever(uses, room.registry, room.clock))
    uses.note(made.obj, room.clock.now())
    assert (await room.get("secrets", "s")).obj["metadata"]["labels"] == {"mine": "1"}
    await room.clock.advance(RECORD_SECONDS)
    await settle()
    kept = (await room.get("secrets", "s")).obj
    assert kept["metadata"]["labels"] == {"mine": "1", LAST_USED: "2026-01-02"}
    uses.note(kept, room.clock.now())
    assert uses.take() == ()
    recorder.cancel()


@in_room
async def test_another_secret_of_that_name_and_one_that_is_gone_are_left_alone(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    made = await room.create("secrets", SECRET)
    uses = LastUses()
    recorder = asyncio.create_task(record_forever(uses, room.registry, room.clock))
    uses.note({"metadata": {**made.obj["metadata"], "uid": "of before"}}, room.clock.now())
    uses.note({"metadata": {**made.obj["metadata"], "name": "gone"}}, room.clock.now())
    with caplog.at_level(logging.WARNING):
        await room.clock.advance(RECORD_SECONDS)
        await settle()
    assert (await room.get("secrets", "s")).obj["metadata"]["labels"] == {"mine": "1"}
    for told in ("/s was not written down: ", "it is another Secret now", "/gone was not written down: "):
        assert told in caplog.text
    assert not recorder.done()
    recorder.cancel()
