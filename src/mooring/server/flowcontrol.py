"""Who runs now and who waits: seats, fair turns and queues per user, and the lowest share for anonymous callers.

Rules kept here:
* At most `seats` requests run at once; health probes, nodes' heartbeats and `system:masters` are never queued.
* Those who wait are served round robin by user, so that one client's storm cannot starve another's single request.
* Most requests never wait for anything, so they hold a seat only while they run: a storm of them takes no seats but the turns
  of the event loop. So a user has one place in a turn while others were there a moment ago, and the rest of a storm waits for
  the next turn. Who is alone has so many places that small turns cost nothing, and whoever comes then waits little.
* Anonymous requests hold the lowest share: they are served when nobody else waits, a few in each turn of the event loop, so
  they slow nobody down and are not slowed themselves while the server has nothing better to do (the public cluster-info is
  what every joining machine reads first). A fixed rate may be configured on top; beyond it the answer is 429.
* Queues are bounded; a full queue answers 429 with Retry-After, which client-go honours (docs/protocol/flow-control.md).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable

from mooring.clock import Clock
from mooring.errors import TooManyRequestsError

SEATS = 600
"""kube-apiserver's 400 read-only + 200 mutating requests in flight."""
QUEUE_PER_USER = 5_000
"""A thousand machines may join with one token at once, and a thousand watches come back after a restart: all one user's."""
QUEUED_USERS = 5_000
"""Bounds the table of waiting users: a whole large cluster of nodes may wait at once."""
PER_TURN = 1
"""Requests of one user in a turn while there are several: others wait about a tenth of a millisecond for one storm."""
ALONE_PER_TURN = 32
"""Requests of a user who is alone in a turn: whoever comes next waits about 3 ms for them, once, and then turns are shared."""
SHARED_SECONDS = 0.1
"""How long turns stay shared after a change of user. Small turns slow a storm by a third, mostly because its client is woken
more often; who asks less often than this would lose a few milliseconds by large ones, and hardly notice."""
ANONYMOUS_SEATS = 60
"""A tenth: the rest stays free for those who said who they are."""
ANONYMOUS_PER_TURN = 8
"""Anonymous requests served per turn of the loop: at about 50 µs each, the most that others wait is half a millisecond."""
ANONYMOUS_QUEUE = 2_000
"""A burst of a thousand joining machines fits; a flood gets 429."""


class FlowControl:
    """One per server process."""

    def __init__(self, clock: Clock, *, seats: int = SEATS, anonymous_per_second: float = 0.0) -> None:
        self._clock = clock
        self._free = seats
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._resting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Users who had their places in this turn, and what of theirs waits for the next."""
        self._turn: dict[str, int] = {}
        self._last = ""
        self._places = ALONE_PER_TURN
        """How many each user has in a turn."""
        self._shared_until = 0.0
        self._anonymous_free = min(ANONYMOUS_SEATS, seats)
        self._anonymous_waiting: deque[asyncio.Future[None]] = deque()
        self._anonymous_turn = 0
        self._turn_scheduled = False
        self._rate = anonymous_per_second
        self._bucket = max(1.0, anonymous_per_second)
        self._bucket_at = clock.monotonic()
        self.queued = 0
        self.rejected = 0

    @property
    def shared(self) -> bool:
        """Whether several users were active a moment ago."""
        return self._places == PER_TURN

    def try_enter(self, user: str) -> bool:
        """Take a seat at once, if one is free, nobody waits for it, and `user` had not their share of this turn."""
        if user != self._last:
            self._share(user)
        if not self._free or self._waiting or self._turn.get(user, 0) >= self._places:
            return False
        self._free -= 1
        self._count(user)
        return True

    async def enter(self, user: str) -> None:
        """Wait for a seat in turn. Raises TooManyRequestsError when this user's queue, or the table, is full."""
        if self.try_enter(user):
            return
        queue = self._waiting.get(user) or self._resting.get(user)
        if queue is None:
            if len(self._waiting) + len(self._resting) >= QUEUED_USERS:
                self.rejected += 1
                raise TooManyRequestsError
            queue = self._queues(user)[user] = deque()
        if len(queue) >= QUEUE_PER_USER:
            self.rejected += 1
            raise TooManyRequestsError
        self.queued += 1
        await self._wait(queue, self.leave)

    def leave(self) -> None:
        """Give the seat back: to the next user in turn, else to an anonymous caller, else to nobody."""
        self._free += 1
        self._serve()
        self._serve_anonymous()

    async def enter_anonymous(self) -> bool:
        """Wait until nobody else does; whether there was anything to wait for.

        Raises TooManyRequestsError beyond the configured rate or a full queue.
        """
        if self._rate and not self._within_rate():
            self.rejected += 1
            raise TooManyRequestsError
        if not self._anonymous_waiting and self._anonymous_may_run():
            self._take_anonymous()
            return False
        if len(self._anonymous_waiting) >= ANONYMOUS_QUEUE:
            self.rejected += 1
            raise TooManyRequestsError
        self.queued += 1
        await self._wait(self._anonymous_waiting, self.leave_anonymous)
        return True

    def leave_anonymous(self) -> None:
        """Give the seat back, to users first."""
        self._anonymous_free += 1
        self.leave()

    async def _wait(self, queue: deque[asyncio.Future[None]], give_back: Callable[[], None]) -> None:
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(ticket)
        try:
            await ticket
        except asyncio.CancelledError:
            if ticket.done() and not ticket.cancelled():
                give_back()  # the seat was handed over in the moment the caller gave up
            raise

    def _share(self, user: str) -> None:
        """Somebody else is there: for a while, turns are shared."""
        if self._last:
            self._places = PER_TURN
            self._shared_until = self._clock.monotonic() + SHARED_SECONDS
        self._last = user

    def _count(self, user: str) -> None:
        self._turn[user] = self._turn.get(user, 0) + 1
        self._schedule_turn()

    def _queues(self, user: str) -> OrderedDict[str, deque[asyncio.Future[None]]]:
        """Where those who wait belong: with the resting when only the next turn can help them."""
        return self._resting if self._turn.get(user, 0) >= self._places else self._waiting

    def _serve(self) -> None:
        """Hand free seats to users in turn. Afterwards no seat is free, or nobody waits for one in this turn."""
        while self._free and self._waiting:
            user, queue = self._waiting.popitem(last=False)
            ticket = queue.popleft()
            if not ticket.done():
                self._free -= 1
                self._count(user)
                ticket.set_result(None)
            if queue:
                self._queues(user)[user] = queue  # at the end: round robin

    def _anonymous_may_run(self) -> bool:
        return (
            not self._waiting
            and self._free > 0
            and self._anonymous_free > 0
            and self._anonymous_turn < ANONYMOUS_PER_TURN
        )

    def _take_anonymous(self) -> None:
        self._free -= 1
        self._anonymous_free -= 1
        self._anonymous_turn += 1
        self._schedule_turn()

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_scheduled = False
        self._turn.clear()
        self._anonymous_turn = 0
        if self.shared and self._clock.monotonic() >= self._shared_until:
            self._places = ALONE_PER_TURN
        self._waiting.update(self._resting)
        self._resting.clear()
        self._serve()
        self._serve_anonymous()

    def _serve_anonymous(self) -> None:
        while self._anonymous_waiting and self._anonymous_may_run():
            ticket = self._anonymous_waiting.popleft()
            if not ticket.done():
                self._take_anonymous()
                ticket.set_result(None)

    def _within_rate(self) -> bool:
        now = self._clock.monotonic()
        self._bucket = min(max(1.0, self._rate), self._bucket + (now - self._bucket_at) * self._rate)
        self._bucket_at = now
        if self._bucket < 1.0:
            return False
        self._bucket -= 1.0
        return True
