"""Resolution of DNS names for plans, with the resolver of this machine.

Rules kept here:
* A name is resolved as it is written: with a dot at its end, so that no search domain is added.
* A name that has no address, or no answer within DEADLINE, has the empty set. The plan that asked decides what that means.
* Answers are kept for a short time, so that a held request, which is planned again and again, asks a name server seldom.
* Lookups run in threads of their own and are bounded. A name server that does not answer delays no other work of the process.
* A requester has one lookup at a time, and one plan that waits for it. Its other plans have the answers that are kept, and no
  further ones: a node chooses the names in its requests, and who answers for them.
* Requesters whose last lookup was slow share MAX_SLOW places, until one of theirs is fast. However many there are, the others have
  the rest of the places and of the threads.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address

from mooring.bounded import Bounded
from mooring.clock import Clock
from mooring.controllers.actions import Addresses
from mooring.pki.x509.names import IPAddress

DEADLINE = 5.0
"""Seconds for all names of one action: one try of the usual resolver."""
KEPT = 30.0
"""Seconds for which an answer is used again; the records of machines that are being set up change often."""
MAX_KEPT = 1024
"""Answers kept; the oldest is dropped."""
SLOW = 1.0
"""Seconds after which a lookup counts as slow. Name servers answer in milliseconds, and a cold cache in tenths of a second."""
THREADS = 16
"""Lookups at a time. One that hangs keeps its thread until the resolver gives up, some DEADLINEs after its plan: there are twice as
many as plans that wait."""
MAX_WAITING = 8
"""Plans that wait for lookups: half of those that a controller handles at a time. Others have no further answers this time."""
MAX_SLOW = 4
"""Requesters with slow lookups that are looked up for at a time."""

ResolveNames = Callable[[Sequence[str], str], Awaitable[Addresses]]
Lookup = Callable[[str], frozenset[IPAddress]]


def look_up(name: str) -> frozenset[IPAddress]:
    """Return the addresses of an absolute name; none when it has none, or the name server fails."""
    try:
        found = socket.getaddrinfo(f"{name}.", None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return frozenset()
    return frozenset(ip_address(str(address[0]).partition("%")[0]) for *_, address in found)


class Resolver:
    """Resolves names for one controller loop."""

    def __init__(self, clock: Clock, lookup: Lookup = look_up, deadline: float = DEADLINE) -> None:
        self._clock = clock
        self._lookup = lookup
        self._deadline = deadline
        self._kept: Bounded[str, tuple[float, frozenset[IPAddress]]] = Bounded(MAX_KEPT)
        self._flights: dict[str, asyncio.Future[frozenset[IPAddress]]] = {}
        self._newest: dict[str, asyncio.Future[frozenset[IPAddress]]] = {}
        """The lookup of each requester that is not done."""
        self._waiting: set[str] = set()
        self._slow: Bounded[str, None] = Bounded(MAX_KEPT)
        """Requesters whose last lookup was slow, in the order of their first slow one."""
        self._threads: ThreadPoolExecutor | None = None

    async def resolve(self, names: Sequence[str], requester: str) -> Addresses:
        """Return the addresses of each name."""
        if self._may_look_up(requester):
            begin = self._clock.monotonic()
            self._waiting.add(requester)
            try:
                async with asyncio.timeout(self._deadline):
                    await self._look_up(names, requester)
            except TimeoutError:  # the rest has no answer
                self._rate(requester, is_slow=True)
            else:
                self._rate(requester, is_slow=self._clock.monotonic() - begin >= SLOW)
            finally:
                self._waiting.discard(requester)
        return {name: self._answer(name) for name in names}

    def _may_look_up(self, requester: str) -> bool:
        busy = self._waiting | self._newest.keys()
        if requester in busy or len(self._waiting) >= MAX_WAITING:
            return False
        return requester not in self._slow or len(busy & self._slow.keys()) < MAX_SLOW

    def _rate(self, requester: str, *, is_slow: bool) -> None:
        """Remember whether the last lookup of a requester was slow."""
        if not is_slow:
            self._slow.pop(requester, None)
        elif requester not in self._slow:
            self._slow[requester] = None

    async def _look_up(self, names: Sequence[str], requester: str) -> None:
        """Look one name up after the other."""
        for name in names:
            flight = self._begin(name)
            if flight is not None:
                self._newest[requester] = flight
                flight.add_done_callback(lambda done: self._newest.pop(requester, None))
                await asyncio.wait((flight,))

    def _answer(self, name: str) -> frozenset[IPAddress]:
        return self._kept.get(name, (0.0, frozenset[IPAddress]()))[1]

    def _begin(self, name: str) -> asyncio.Future[frozenset[IPAddress]] | None:
        """Return the lookup of a name, begun or under way; None when there is an answer."""
        kept = self._kept.get(name)
        if kept is not None:
            if self._clock.monotonic() < kept[0] + KEPT:
                return None
            del self._kept[name]
        flight = self._flights.get(name)
        if flight is None:
            self._threads = self._threads or ThreadPoolExecutor(THREADS, thread_name_prefix="resolve")
            flight = asyncio.get_running_loop().run_in_executor(self._threads, self._lookup, name)
            self._flights[name] = flight
            flight.add_done_callback(lambda done: self._keep(name, done))
        return flight

    def _keep(self, name: str, done: asyncio.Future[frozenset[IPAddress]]) -> None:
        del self._flights[name]
        if done.cancelled() or done.exception() is not None:
            return
        self._kept[name] = (self._clock.monotonic(), done.result())
