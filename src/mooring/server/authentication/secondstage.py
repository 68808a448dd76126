"""The second stage of authentication: finding out what the chain of authenticators asks for (law 2).

Rules kept here:
* Whatever goes wrong outside is a rejection of that one authenticator, with a reason for the operator; it is never an error
  of the request, and never an acceptance.
* A finding-out has a deadline. Those that ask for the same thing at once wait for one of them (single flight); when
  the one who began gives up, the others still get its verdict.
* What computes for long runs in threads, few of them, with a short queue: beyond it the answer is `too-busy`. So a storm of
  passwords costs the event loop nothing.
* HTTP goes to targets the configuration names, under the trust it names, without redirects; no more is read than asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from mooring.authn.chain import Found, Pending
from mooring.authn.verdict import Answer, Call, CallFailed, Later, Pause, Rejected, Talk, Verdict
from mooring.clock import Clock

log = logging.getLogger("mooring.authentication")

R = TypeVar("R")

TIMED_OUT = "timed-out"
FAILED = "failed"
TOO_BUSY = "too-busy"
GUESSING = "too-many-guesses"
THREADS = 2
"""scrypt takes a core for a tenth of a second, and 32 MiB: two at a time leave the other requests their share."""
MAX_COMPUTING = 64
"""Computations waiting for a thread: some seconds of work. Whoever comes later is told at once."""
MAX_ASKING = 256
"""Conversations and coroutines under way at once: more would only wait in the queues of whoever is asked."""
MAX_STEPS = 64
"""Calls and pauses of one conversation: the longest (a webhook that is down) has ten."""
JITTER = 0.2


class Target(Protocol):
    """Who may be asked over HTTP."""

    async def exchange(self, call: Call) -> Answer | CallFailed:
        """One request and its answer. Raises nothing but cancellation."""


def _never() -> bool:
    return False


class SecondStage:
    """Finds out. Make one for a server; `close` it."""

    def __init__(self, clock: Clock, entropy: Callable[[int], bytes], targets: Mapping[str, Target]) -> None:
        self._clock = clock
        self._entropy = entropy
        self._targets = targets
        self._flights: dict[tuple[str, bytes], asyncio.Task[Verdict | None]] = {}
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._computing = 0
        self._asking = 0
        self._tasks: set[asyncio.Task[Verdict | None]] = set()

    async def run(self, chain: Generator[Pending, Found, R], guesses: Callable[[], bool] = _never) -> R:
        """Drive `chain` to its end. Nothing is found out for a caller who `guesses`."""
        try:
            pending = next(chain)
            while True:
                verdict = Rejected(GUESSING) if guesses() else await self._settle(pending)
                pending = chain.send(Found(verdict, self._clock.now()))
        except StopIteration as done:
            result: R = done.value
            return result

    async def close(self) -> None:
        """Give up what is under way."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)

    async def _settle(self, pending: Pending) -> Verdict | None:
        later, name = pending.later, pending.authenticator
        flight = None if later.key is None else self._flights.get((name, later.key))
        if flight is None:
            busy = self._computing >= MAX_COMPUTING if later.compute else self._asking >= MAX_ASKING
            if busy:
                return Rejected(TOO_BUSY)
            flight = asyncio.create_task(self._find_out(name, later), name=f"authenticate-{name}")
            self._tasks.add(flight)
            flight.add_done_callback(self._tasks.discard)
            self._count(later, 1)  # now, not when the task begins: a thousand may come in one turn of the event loop
            flight.add_done_callback(lambda _: self._count(later, -1))
            if later.key is not None:
                place = (name, later.key)
                self._flights[place] = flight
                flight.add_done_callback(lambda _: self._flights.pop(place, None))
        return await asyncio.shield(flight)

    def _count(self, later: Later, change: int) -> None:
        if later.compute:
            self._computing += change
        else:
            self._asking += change

    async def _find_out(self, name: str, later: Later) -> Verdict | None:
        try:
            async with asyncio.timeout(later.deadline):
                verdict = await self._verdict(name, later)
        except TimeoutError:
            verdict = Rejected(TIMED_OUT, f"no verdict within {later.deadline:g} s")
        except Exception as error:
            # its text may hold what it was given: the type says enough, and the operator's own module logs for itself
            log.warning("authenticator %s failed: %s", name, type(error).__name__)
            verdict = Rejected(FAILED, type(error).__name__)
        if later.found is not None and verdict is not None:
            later.found(verdict, self._clock.now())
        return verdict

    async def _verdict(self, name: str, later: Later) -> Verdict | None:
        if later.talk is not None:
            return await self._talk(later.talk(self._clock.now()))
        if later.compute is not None:
            return await self._compute(name, later.compute)
        if later.foreign is not None:
            return await later.foreign()
        return None

    async def _compute(self, name: str, compute: Callable[[], Verdict | None]) -> Verdict | None:
        threads = self._threads.get(name)
        if threads is None:  # each its own: one that hangs holds up nobody else
            threads = self._threads[name] = ThreadPoolExecutor(THREADS, thread_name_prefix=f"authenticate-{name}")
        return await asyncio.get_running_loop().run_in_executor(threads, compute)

    async def _talk(self, talk: Talk) -> Verdict | None:
        reply: Answer | CallFailed | None = None
        for _ in range(MAX_STEPS):
            try:
                step = talk.send(reply)
            except StopIteration as done:
                verdict: Verdict | None = done.value
                return verdict
            if isinstance(step, Pause):
                await self._clock.sleep(step.seconds * (1 + JITTER * self._either_way()))
                reply = None
            else:
                reply = await self.exchange(step)
        talk.close()
        return Rejected(FAILED, f"more than {MAX_STEPS} steps")

    def _either_way(self) -> float:
        """From -1 to 1."""
        return int.from_bytes(self._entropy(2)) / 0x7FFF - 1

    async def exchange(self, call: Call) -> Answer | CallFailed:
        """One call of a conversation."""
        target = self._targets.get(call.target)
        if target is None:
            return CallFailed(f"nobody is called {call.target} here")
        try:
            async with asyncio.timeout(call.timeout):
                return await target.exchange(call)
        except TimeoutError:
            return CallFailed(f"no answer within {call.timeout:g} s")
