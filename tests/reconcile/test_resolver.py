"""Resolution of names for plans: as written, bounded in time and number, with answers that are kept for a while."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import wraps
from ipaddress import ip_address
from typing import Any, ParamSpec

import pytest

from mooring.controllers.actions import Action, Key, Resolve
from mooring.pki.x509.names import IPAddress
from mooring.reconcile import resolver
from mooring.reconcile.resolver import KEPT, MAX_SLOW, MAX_WAITING, SLOW, Resolver, look_up
from tests.reconcile.test_loop import Scripted, config_map, marker
from tests.support.loops import api_of, exists, running, until
from tests.support.manualclock import ManualClock
from tests.support.registryroom import Room, in_room

ADDRESS = ip_address("192.0.2.1")


P = ParamSpec("P")


def asynchronous(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in an event loop of its own."""

    @wraps(test)
    def run(*arguments: P.args, **options: P.kwargs) -> None:
        asyncio.run(test(*arguments, **options))

    return run


class Names:
    """A name server that counts, and that can be stopped."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.open = threading.Event()
        self.open.set()

    def look_up(self, name: str) -> frozenset[IPAddress]:
        self.asked.append(name)
        self.open.wait()
        if name == "broken":
            raise RuntimeError
        return frozenset() if name == "unknown" else frozenset({ADDRESS})


@pytest.fixture
def names() -> Iterator[Names]:
    served = Names()
    yield served
    served.open.set()


@asynchronous
async def test_answers_are_kept_for_a_while(names: Names) -> None:
    clock = ManualClock()
    asking = Resolver(clock, names.look_up)
    expected = {"a": frozenset({ADDRESS}), "unknown": frozenset[IPAddress]()}
    assert await asking.resolve(("a", "unknown"), "n1") == expected
    assert await asking.resolve(("a", "unknown"), "n1") == expected
    assert sorted(names.asked) == ["a", "unknown"]
    await clock.advance(KEPT)
    assert await asking.resolve(("a",), "n1") == {"a": frozenset({ADDRESS})}
    assert sorted(names.asked) == ["a", "a", "unknown"]


@asynchronous
async def test_a_failed_lookup_is_no_answer_and_is_not_kept(names: Names) -> None:
    asking = Resolver(ManualClock(), names.look_up)
    for _ in range(2):
        assert await asking.resolve(("broken",), "n1") == {"broken": frozenset()}
    assert names.asked == ["broken", "broken"]


@asynchronous
async def test_a_name_server_that_does_not_answer_is_waited_for_until_the_deadline(names: Names) -> None:
    names.open.clear()
    asking = Resolver(ManualClock(), names.look_up, deadline=0.01)
    assert await asking.resolve(("slow", "next"), "n1") == {"slow": frozenset(), "next": frozenset()}
    waiting = asyncio.ensure_future(asking.resolve(("slow",), "n2"))
    names.open.set()
    assert (await waiting) in ({"slow": frozenset({ADDRESS})}, {"slow": frozenset()})
    assert names.asked == ["slow"], "one lookup serves all that wait for it"


@asynchronous
async def test_a_requester_whose_names_are_not_answered_holds_one_lookup_and_one_plan(names: Names) -> None:
    names.open.clear()
    asking = Resolver(ManualClock(), names.look_up, deadline=60)
    waiting = asyncio.ensure_future(asking.resolve(("slow",), "n1"))
    await asyncio.sleep(0)
    for name in ("slow", "slow-2"):
        assert await asking.resolve((name,), "n1") == {name: frozenset()}, "at once"
    others = [asyncio.ensure_future(asking.resolve(("slow",), f"m{number}")) for number in range(MAX_WAITING - 1)]
    await asyncio.sleep(0)
    assert await asking.resolve(("slow-3",), "n2") == {"slow-3": frozenset()}, "of many requesters some wait"
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert await asking.resolve(("slow-4",), "n1") == {"slow-4": frozenset()}, "its lookup is under way"
    names.open.set()
    assert await asyncio.gather(*others) == [{"slow": frozenset({ADDRESS})}] * len(others)
    assert await asking.resolve(("slow", "a"), "n1") == {"slow": frozenset({ADDRESS}), "a": frozenset({ADDRESS})}
    assert names.asked == ["slow", "a"]


async def held_up(asking: Resolver, count: int) -> None:
    """Let the lookups of so many requesters take until the deadline."""
    for first in range(0, count, MAX_WAITING):
        batch = range(first, min(first + MAX_WAITING, count))
        await asyncio.gather(*(asking.resolve((f"held-{number}",), f"slow-{number}") for number in batch))


@asynchronous
async def test_requesters_whose_names_are_not_answered_leave_places_to_others(names: Names) -> None:
    names.open.clear()
    asking = Resolver(ManualClock(), names.look_up, deadline=0.01)
    await held_up(asking, MAX_WAITING)
    names.open.set()
    await until(lambda: len(names.asked) == MAX_WAITING and not asking._newest)
    names.open.clear()
    names.asked.clear()
    asking._deadline = 60
    slow = [
        asyncio.ensure_future(asking.resolve((f"again-{number}",), f"slow-{number}")) for number in range(MAX_WAITING)
    ]
    await until(lambda: sum(one.done() for one in slow) == MAX_WAITING - MAX_SLOW)
    other = asyncio.ensure_future(asking.resolve(("a",), "n1"))
    await until(lambda: "a" in names.asked)
    names.open.set()
    assert await other == {"a": frozenset({ADDRESS})}
    await asyncio.gather(*slow)
    assert len([name for name in names.asked if name.startswith("again")]) == MAX_SLOW
    answers = await asyncio.gather(
        *(asking.resolve((f"once-{number}",), f"slow-{number}") for number in range(MAX_SLOW))
    )
    assert all(frozenset({ADDRESS}) in answer.values() for answer in answers), "a fast answer ends it"
    assert len(asking._slow) == MAX_WAITING - MAX_SLOW


@asynchronous
async def test_threads_are_left_while_lookups_hang_after_their_plans(names: Names) -> None:
    hanging = Names()
    hanging.open.clear()
    asking = Resolver(ManualClock(), lambda name: (hanging if "held" in name else names).look_up(name), deadline=0.01)
    await held_up(asking, MAX_WAITING)
    asking._deadline = 60
    assert await asking.resolve(("a",), "n1") == {"a": frozenset({ADDRESS})}
    hanging.open.set()


@asynchronous
async def test_a_lookup_that_takes_long_is_slow(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "MAX_KEPT", 1)
    clock = ManualClock()
    asking = Resolver(clock, names.look_up, deadline=60)
    for requester in ("n1", "n2", "n2"):
        names.open.clear()
        waiting = asyncio.ensure_future(asking.resolve((f"{requester}-{len(names.asked)}",), requester))
        await until(lambda: bool(asking._newest))
        await clock.advance(SLOW)
        names.open.set()
        await waiting
    assert list(asking._slow) == ["n2"], "so many are remembered"


@asynchronous
async def test_kept_answers_are_bounded(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "MAX_KEPT", 1)
    asking = Resolver(ManualClock(), names.look_up)
    for name in ("a", "b", "a"):
        await asking.resolve((name,), "n1")
    assert names.asked == ["a", "b", "a"]


def test_a_name_is_looked_up_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def getaddrinfo(host: str, port: None, **options: Any) -> list[tuple[Any, ...]]:
        asked.append(host)
        if host == "missing.":
            raise socket.gaierror
        return [(0, 0, 0, "", ("192.0.2.1", 0)), (0, 0, 0, "", ("fe80::1%eth0", 0, 0, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert look_up("a.example.com") == {ADDRESS, ip_address("fe80::1")}
    assert look_up("missing") == frozenset()
    assert asked == ["a.example.com.", "missing."]


@in_room
async def test_the_loop_resolves_names_for_a_plan(room: Room) -> None:
    def then(found: Any) -> Sequence[Action]:
        return (marker(str(next(iter(found["a.example.com"]))).replace(".", "-")),)

    def ask(key: Key, views: Any, now: Any) -> Sequence[Action]:
        return (Resolve(("a.example.com",), "n1", then),)

    async def resolve(names: Sequence[str], requester: str) -> dict[str, frozenset[IPAddress]]:
        return dict.fromkeys(names, frozenset({ADDRESS}))

    await room.create("configmaps", config_map("a"))
    async with running(room, [Scripted(ask)], api_of(room), resolve=resolve):
        await until(lambda: exists(room, "secrets", "192-0-2-1", "default"))
