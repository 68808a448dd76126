"""The second stage of authentication: does the work that deferred verdicts of the chain describe (law 2).

Rules kept here:
* A failure outside the server is a rejection by the one authenticator that deferred, with a reason for the operator. It is never an
  error of the request and never an acceptance.
* Each piece of work has a deadline. Requests with the same key share one piece of work (single flight).
* Long computations run in a few threads with a short queue. Beyond the queue the verdict is `too-busy`, so a storm of passwords
  does not block the event loop.
* HTTP requests go to the targets that the configuration names, under the trust that it names, without redirects. No more of a
  response is read than the request allows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TypeVar

from mooring.authn.chain import Found, Pending
from mooring.authn.host import Target
from mooring.authn.reasons import FAILED, GUESSING, TIMED_OUT, TOO_BUSY
from mooring.authn.verdict import Deferred, Rejected, Verdict
from mooring.client.http.requests import drive
from mooring.clock import Clock
from mooring.errors import MooringError
from mooring.trust.httpexchange import (
    TIMEOUT,
    UNREACHABLE,
    Exchange,
    HttpFailure,
    HttpRequest,
    HttpResponse,
    Reply,
    Wait,
)

log = logging.getLogger("mooring.authentication")

R = TypeVar("R")

THREADS = 2
"""scrypt takes a core for a tenth of a second, and 32 MiB: two at a time leave the other requests their share. The limits here are
those of a host, and each worker has its part."""
MAX_COMPUTING = 64
"""Computations that wait for a thread: some seconds of work. Later ones are rejected at once."""
MAX_REMOTE = 256
"""Exchanges and coroutines under way at once. More would only wait in the queues of the remote services."""
MAX_STEPS = 64
"""Requests and waits of one exchange. The longest, with a webhook that is down, has ten."""


class StepLimitError(MooringError):
    """An exchange yielded more than MAX_STEPS steps."""


def _never() -> bool:
    return False


class DeferredAuthentication:
    """Settles the deferred verdicts of one server. `targets` are looked up by name at each request. `close` it at the end."""

    def __init__(
        self, clock: Clock, entropy: Callable[[int], bytes], targets: Mapping[str, Target], workers: int = 1
    ) -> None:
        """`workers`: number of processes that share the limits."""
        self._workers = workers
        self._clock = clock
        self._entropy = entropy
        self._targets = targets
        self._flights: dict[tuple[str, bytes], asyncio.Task[Verdict | None]] = {}
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._computing = 0
        self._remote = 0
        self._tasks: set[asyncio.Task[Verdict | None]] = set()

    async def settle(self, chain: Generator[Pending, Found, R], guesses: Callable[[], bool] = _never) -> R:
        """Drive `chain` to its end and return its outcome; most chains have no deferred verdict.

        While `guesses` returns true, deferred verdicts are rejected without work.
        """
        try:
            pending = next(chain)
            while True:
                verdict = Rejected(GUESSING) if guesses() else await self._verdict_of(pending)
                pending = chain.send(Found(verdict, self._clock.now()))
        except StopIteration as done:
            result: R = done.value
            return result

    def now(self) -> datetime:
        """Return the time at which a chain that begins now judges."""
        return self._clock.now()

    async def close(self) -> None:
        """Cancel the work that is under way."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)

    async def _verdict_of(self, pending: Pending) -> Verdict | None:
        deferred, name = pending.deferred, pending.authenticator
        # Requests with the same key share one piece of work: a storm of one token causes one request to a service.
        flight = None if deferred.key is None else self._flights.get((name, deferred.key))
        if flight is None:
            running, most = (self._computing, MAX_COMPUTING) if deferred.compute else (self._remote, MAX_REMOTE)
            if running >= max(1, most // self._workers):
                return Rejected(TOO_BUSY)
            flight = asyncio.create_task(self._find_out(name, deferred), name=f"authenticate-{name}")
            self._tasks.add(flight)
            flight.add_done_callback(self._tasks.discard)
            # Counted now and not when the task begins: a thousand may arrive in one turn of the event loop.
            self._count(deferred, 1)
            flight.add_done_callback(lambda _: self._count(deferred, -1))
            if deferred.key is not None:
                place = (name, deferred.key)
                self._flights[place] = flight
                flight.add_done_callback(lambda _: self._flights.pop(place, None))
        # When the request that started the work is cancelled, the others still receive its verdict.
        return await asyncio.shield(flight)

    def _count(self, deferred: Deferred, change: int) -> None:
        if deferred.compute:
            self._computing += change
        else:
            self._remote += change

    async def _find_out(self, name: str, deferred: Deferred) -> Verdict | None:
        """Do the work, and report the verdict to the authenticator."""
        try:
            async with asyncio.timeout(deferred.deadline):
                verdict = await self._work(name, deferred)
        except TimeoutError:
            verdict = Rejected(TIMED_OUT, f"no verdict within {deferred.deadline:g} s")
        except StepLimitError as error:
            verdict = Rejected(FAILED, str(error))
        except Exception as error:
            # the text of the error may hold what the authenticator was given; its type is enough
            log.warning("authenticator %s failed: %s", name, type(error).__name__)
            verdict = Rejected(FAILED, type(error).__name__)
        if deferred.on_verdict is not None and verdict is not None:
            deferred.on_verdict(verdict, self._clock.now())
        return verdict

    async def _work(self, name: str, deferred: Deferred) -> Verdict | None:
        if deferred.exchange is not None:
            return await self.drive(deferred.exchange(self._clock.now()))
        if deferred.compute is not None:
            return await self._compute(name, deferred.compute)
        if deferred.coroutine is not None:
            return await deferred.coroutine()
        return None

    async def _compute(self, name: str, compute: Callable[[], Verdict | None]) -> Verdict | None:
        threads = self._threads.get(name)
        # Each authenticator has its own threads, so that one that hangs delays no other.
        if threads is None:
            threads = self._threads[name] = ThreadPoolExecutor(
                max(1, THREADS // self._workers), thread_name_prefix=f"authenticate-{name}"
            )
        return await asyncio.get_running_loop().run_in_executor(threads, compute)

    async def drive(self, exchange: Exchange[R]) -> R:
        """Run an exchange with the targets to its end. Raises what it raises, and StepLimitError."""
        steps = 0

        async def perform(step: HttpRequest | Wait) -> Reply:
            nonlocal steps
            if steps == MAX_STEPS:
                raise StepLimitError(f"more than {MAX_STEPS} steps")
            steps += 1
            if isinstance(step, HttpRequest):
                return await self._send(step)
            await self._clock.sleep(step.seconds * (1 + step.jitter * self._either_way()))
            return None

        return await drive(exchange, perform)

    def _either_way(self) -> float:
        """Return a random number from -1 to 1."""
        return int.from_bytes(self._entropy(2)) / 0x7FFF - 1

    async def _send(self, request: HttpRequest) -> HttpResponse | HttpFailure:
        target = self._targets.get(request.target) if isinstance(request.target, str) else None
        if target is None:
            return HttpFailure(UNREACHABLE, f"there is no target {request.target}")
        try:
            async with asyncio.timeout(request.timeout):
                return await target.send(request)
        except TimeoutError:
            return HttpFailure(TIMEOUT, f"no answer within {request.timeout:g} s")
