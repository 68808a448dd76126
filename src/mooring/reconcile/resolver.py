"""Resolution of DNS names for plans, with the resolver of this machine.

Rules kept here:
* A name is resolved as it is written: with a dot at its end, so that no search domain is added.
* A name that has no address, or no answer within DEADLINE, has the empty set. The plan that asked decides what that means.
* Answers are kept for a short time, so that a held request, which is planned again and again, asks a name server seldom.
* Lookups run in threads of their own and are bounded. A name server that does not answer delays no other work of the process.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address

from mooring.clock import Clock
from mooring.controllers.actions import Addresses
from mooring.pki.x509.names import IPAddress

DEADLINE = 5.0
"""Seconds for all names of one action: one try of the usual resolver."""
KEPT = 30.0
"""Seconds for which an answer is used again; the records of machines that are being set up change often."""
MAX_KEPT = 1024
"""Answers kept; the oldest is dropped."""
THREADS = 4
"""Lookups at a time. One that hangs keeps its thread until the resolver gives up."""
MAX_WAITING = 256
"""Lookups under way and waiting. Names beyond that have no answer this time."""

ResolveNames = Callable[[Sequence[str]], Awaitable[Addresses]]
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
        self._kept: dict[str, tuple[float, frozenset[IPAddress]]] = {}
        self._flights: dict[str, asyncio.Future[frozenset[IPAddress]]] = {}
        self._threads: ThreadPoolExecutor | None = None

    async def resolve(self, names: Sequence[str]) -> Addresses:
        """Return the addresses of each name."""
        asked = {name: flight for name in names if (flight := self._begin(name)) is not None}
        if asked:
            await asyncio.wait(asked.values(), timeout=self._deadline)
        return {name: self._answer(name) for name in names}

    def _answer(self, name: str) -> frozenset[IPAddress]:
        return self._kept.get(name, (0.0, frozenset[IPAddress]()))[1]

    def _begin(self, name: str) -> asyncio.Future[frozenset[IPAddress]] | None:
        """Return the lookup of a name, begun or under way; None when there is an answer, or too many are waiting."""
        kept = self._kept.get(name)
        if kept is not None:
            if self._clock.monotonic() < kept[0] + KEPT:
                return None
            del self._kept[name]
        flight = self._flights.get(name)
        if flight is None and len(self._flights) < MAX_WAITING:
            self._threads = self._threads or ThreadPoolExecutor(THREADS, thread_name_prefix="resolve")
            flight = asyncio.get_running_loop().run_in_executor(self._threads, self._lookup, name)
            self._flights[name] = flight
            flight.add_done_callback(lambda done: self._keep(name, done))
        return flight

    def _keep(self, name: str, done: asyncio.Future[frozenset[IPAddress]]) -> None:
        del self._flights[name]
        if done.cancelled() or done.exception() is not None:
            return
        if len(self._kept) >= MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[name] = (self._clock.monotonic(), done.result())
