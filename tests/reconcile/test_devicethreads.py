"""Work of plans that waits for a device: other keys, and other requests of the process, go on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from mooring.controllers.actions import Action, Create, InThread
from mooring.errors import MooringError
from mooring.pki.errors import DeviceError
from mooring.reconcile import workqueue
from mooring.reconcile.workqueue import THREADS, DeviceThreads
from tests.reconcile.test_loop import Scripted
from tests.support.loops import exists, running, until
from tests.support.registryroom import Room, in_room


def config_map(name: str) -> Create:
    return Create("configmaps", {"metadata": {"name": name, "namespace": "default"}, "data": {}})


@in_room
async def test_the_loop_goes_on_while_a_device_works(room: Room) -> None:
    answered = threading.Event()

    def work() -> Sequence[Action]:
        assert threading.current_thread() is not threading.main_thread()
        answered.wait(30)
        return (config_map("signed"),)

    def script(key: tuple[str, str], *_: object) -> Sequence[Action]:
        actions: dict[str, Sequence[Action]] = {"slow": (InThread(work),), "quick": (config_map("made"),)}
        return actions.get(key[1], ())

    async with running(room, [Scripted(script)], workers=2):
        await room.create("configmaps", {"metadata": {"name": "slow", "namespace": "default"}})
        await room.create("configmaps", {"metadata": {"name": "quick", "namespace": "default"}})
        await until(lambda: exists(room, "configmaps", "made", "default"))
        assert not exists(room, "configmaps", "signed", "default")
        answered.set()
        async with asyncio.timeout(30):
            while not exists(room, "configmaps", "signed", "default"):
                await asyncio.sleep(0.001)


@in_room
async def test_a_device_that_failed_is_asked_again(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Exception] = [DeviceError("the token is gone")]

    def work() -> Sequence[Action]:
        if answers:
            raise answers.pop()
        return (config_map("signed"),)

    async with running(room, [Scripted(lambda key, *_: (InThread(work),) if key[1] == "slow" else ())]):
        await room.create("configmaps", {"metadata": {"name": "slow", "namespace": "default"}})
        async with asyncio.timeout(30):
            while not exists(room, "configmaps", "signed", "default"):
                await asyncio.sleep(0.001)
                await room.clock.advance(1)
    assert "default/slow: the token is gone; trying again in" in caplog.text


def test_a_device_that_never_answers_is_given_up_and_does_not_take_every_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workqueue, "DEADLINE", 0.01)
    answered = threading.Event()
    threads = DeviceThreads()

    async def test() -> None:
        for _ in range(THREADS):
            with pytest.raises(MooringError, match="the device does not answer within"):
                await threads.run(lambda: answered.wait(30))
        with pytest.raises(MooringError, match="all threads wait for it"):
            await threads.run(lambda: True)
        answered.set()
        async with asyncio.timeout(30):
            while True:
                try:
                    assert await threads.run(lambda: 7) == 7
                    return
                except MooringError:
                    await asyncio.sleep(0.001)

    asyncio.run(test())


def test_an_answer_after_the_end_of_the_loop_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workqueue, "DEADLINE", 0.01)
    answered = threading.Event()
    ended: list[threading.Thread] = []

    def work() -> None:
        ended.append(threading.current_thread())
        answered.wait(30)

    async def test() -> None:
        with pytest.raises(MooringError):
            await DeviceThreads().run(work)

    asyncio.run(test())
    answered.set()
    ended[0].join(30)
    assert not ended[0].is_alive()
