"""The second stage of authentication: finding out what the chain asks for, and nothing that goes wrong is an acceptance."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from datetime import datetime

import pytest

from mooring.authn.chain import Found, Pending
from mooring.authn.reasons import GUESSING
from mooring.authn.verdict import Accepted, Deferred, NotMine, Rejected, Verdict
from mooring.identity import UserInfo
from mooring.server.authentication import deferred
from mooring.server.authentication.deferred import DeferredAuthentication
from mooring.trust.httpexchange import Exchange, HttpFailure, HttpRequest, HttpResponse, Wait
from tests.support.manualclock import ManualClock, settle

ALICE = Accepted(UserInfo("alice"))


class Peer:
    """Answers as told, and counts."""

    def __init__(self) -> None:
        self.calls: list[HttpRequest] = []
        self.open = asyncio.Event()
        self.open.set()

    async def send(self, call: HttpRequest) -> HttpResponse | HttpFailure:
        self.calls.append(call)
        await self.open.wait()
        return HttpResponse(200, b"alice")

    async def close(self) -> None:
        pass


class Sleeper:
    async def send(self, call: HttpRequest) -> HttpResponse | HttpFailure:
        await asyncio.Event().wait()
        raise AssertionError("nobody wakes it")

    async def close(self) -> None:
        pass


def pending(later: Deferred, name: str = "webhook") -> Generator[Pending, Found, Found]:
    return (yield Pending(name, later))


def asking() -> Exchange[Verdict | None]:
    reply = yield HttpRequest("peer")
    return Accepted(UserInfo(reply.body.decode())) if isinstance(reply, HttpResponse) else Rejected("down", str(reply))


Test = Callable[[DeferredAuthentication, ManualClock, Peer], Awaitable[None]]


def staged(test: Test) -> None:
    """Run `test` with a stage of its own."""

    async def run() -> None:
        clock, peer = ManualClock(), Peer()
        stage = DeferredAuthentication(clock, lambda size: b"\xff" * size, {"peer": peer, "sleeper": Sleeper()})
        try:
            await test(stage, clock, peer)
        finally:
            await stage.close()

    asyncio.run(run())


async def verdict(stage: DeferredAuthentication, later: Deferred) -> Verdict | None:
    return (await stage.settle(pending(later))).verdict


async def answered() -> Verdict | None:
    return ALICE


async def broken() -> Verdict | None:
    raise ValueError("hunter2 is the password")


async def silent() -> Verdict | None:
    await asyncio.Event().wait()
    return ALICE


def fails() -> Verdict | None:
    raise ValueError("hunter2 is the password")


def endless() -> Exchange[Verdict | None]:
    while True:
        yield HttpRequest("peer")


def to_nobody() -> Exchange[Verdict | None]:
    reply = yield HttpRequest("stranger")
    assert isinstance(reply, HttpFailure)
    return Rejected("down", reply.text)


def to_a_slow_one() -> Exchange[Verdict | None]:
    reply = yield HttpRequest("sleeper", timeout=0)
    assert isinstance(reply, HttpFailure)
    return Rejected("down", reply.text)


@pytest.mark.parametrize(
    ("later", "found"),
    [
        pytest.param(Deferred(exchange=lambda now: asking()), ALICE, id="a conversation ends in a verdict"),
        pytest.param(Deferred(compute=lambda: ALICE), ALICE, id="so does a computation"),
        pytest.param(Deferred(coroutine=answered), ALICE, id="and a coroutine"),
        pytest.param(Deferred(), None, id="nothing to find out: ask again"),
        pytest.param(
            Deferred(coroutine=broken), Rejected("failed", "ValueError"), id="a failure tells its type and no more"
        ),
        pytest.param(Deferred(compute=fails), Rejected("failed", "ValueError"), id="in a thread too"),
        pytest.param(
            Deferred(coroutine=silent, deadline=0),
            Rejected("timed-out", "no verdict within 0 s"),
            id="a deadline passes",
        ),
        pytest.param(
            Deferred(exchange=lambda now: endless()),
            Rejected("failed", "more than 64 steps"),
            id="nobody talks for ever",
        ),
        pytest.param(
            Deferred(exchange=lambda now: to_nobody()),
            Rejected("down", "there is no target stranger"),
            id="nobody there",
        ),
        pytest.param(
            Deferred(exchange=lambda now: to_a_slow_one()),
            Rejected("down", "no answer within 0 s"),
            id="a call has its own time",
        ),
    ],
)
def test_what_is_found(later: Deferred, found: Verdict | None) -> None:
    async def test(stage: DeferredAuthentication, clock: ManualClock, peer: Peer) -> None:
        assert await verdict(stage, later) == found

    staged(test)


def test_the_finder_is_told_what_was_found_and_when() -> None:
    async def test(stage: DeferredAuthentication, clock: ManualClock, peer: Peer) -> None:
        told: list[Verdict | datetime] = []
        await verdict(stage, Deferred(coroutine=answered, on_verdict=lambda verdict, now: told.extend((verdict, now))))
        assert told == [ALICE, clock.now()]

    staged(test)


def test_those_who_ask_for_the_same_share_one_conversation() -> None:
    async def test(stage: DeferredAuthentication, clock: ManualClock, peer: Peer) -> None:
        peer.open.clear()
        later = Deferred(exchange=lambda now: asking(), key=b"k")
        first = asyncio.create_task(verdict(stage, later))
        second = asyncio.create_task(verdict(stage, later))
        other = asyncio.create_task(verdict(stage, Deferred(exchange=lambda now: asking(), key=b"other")))
        await settle()
        first.cancel()
        peer.open.set()
        assert [await second, await other] == [ALICE, ALICE]
        assert len(peer.calls) == 2
        assert await verdict(stage, later) == ALICE
        assert len(peer.calls) == 3, "the next one asks again: remembering is the authenticator's"

    staged(test)


def test_nothing_is_found_out_for_who_guesses() -> None:
    async def test(stage: DeferredAuthentication, clock: ManualClock, peer: Peer) -> None:
        later = Deferred(
            exchange=lambda now: asking(), on_verdict=lambda verdict, now: pytest.fail("nothing was found")
        )
        assert (await stage.settle(pending(later), lambda: True)).verdict == Rejected(GUESSING)
        assert peer.calls == []

    staged(test)


def test_a_pause_lasts_a_fifth_more_at_the_most() -> None:
    async def test(stage: DeferredAuthentication, clock: ManualClock, peer: Peer) -> None:
        def patient() -> Exchange[Verdict | None]:
            assert (yield Wait(10, 0.2)) is None
            return NotMine()

        waiting = asyncio.create_task(verdict(stage, Deferred(exchange=lambda now: patient(), deadline=60)))
        await clock.advance(11.9)
        assert not waiting.done()
        await clock.advance(0.2)
        assert await waiting == NotMine()

    staged(test)


def test_a_storm_of_passwords_is_refused_beyond_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(stage: DeferredAuthentication, clock: ManualClock, peer: Peer) -> None:
        monkeypatch.setattr(deferred, "MAX_COMPUTING", 2)
        monkeypatch.setattr(deferred, "MAX_REMOTE", 1)
        gate = threading.Event()

        def hashing() -> Verdict | None:
            gate.wait(30)
            return ALICE

        tasks = [asyncio.create_task(verdict(stage, Deferred(compute=hashing))) for _ in range(2)]
        await settle()
        assert await verdict(stage, Deferred(compute=hashing)) == Rejected("too-busy")
        assert await verdict(stage, Deferred(coroutine=answered)) == ALICE, "others are not held up"
        gate.set()
        assert [await task for task in tasks] == [ALICE, ALICE]
        tasks = [asyncio.create_task(verdict(stage, Deferred(coroutine=silent)))]
        await settle()
        assert await verdict(stage, Deferred(coroutine=answered)) == Rejected("too-busy")
        tasks[0].cancel()

    staged(test)


def test_a_storm_within_one_turn_of_the_event_loop_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(stage: DeferredAuthentication, clock: ManualClock, peer: Peer) -> None:
        monkeypatch.setattr(deferred, "MAX_REMOTE", 2)
        found = await asyncio.gather(*(verdict(stage, Deferred(coroutine=answered)) for _ in range(5)))
        assert found == [ALICE, ALICE, *[Rejected("too-busy")] * 3]
        assert await verdict(stage, Deferred(coroutine=answered)) == ALICE, "and over when it is over"

    staged(test)


def test_closing_gives_up_what_is_under_way() -> None:
    async def test(stage: DeferredAuthentication, clock: ManualClock, peer: Peer) -> None:
        waiting = asyncio.create_task(verdict(stage, Deferred(coroutine=silent)))
        await settle()
        await stage.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    staged(test)
