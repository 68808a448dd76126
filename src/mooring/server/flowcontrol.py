"""Flow control: seats for running requests, fair turns and queues for users, the lowest share for anonymous clients.

Rules kept here (docs/protocol/flow-control.md):
* At most `seats` requests run at once. Health probes, nodes' heartbeats and `system:masters` are never queued.
* Waiting requests are served round robin by user, so that a storm of one client does not delay the single request of another.
* Most requests never wait for I/O, and hold a seat only while they run. A storm of them occupies the turns of the event loop and
  not the seats. So while several users are active, each may start one request in a turn, and the rest of a storm waits for the
  next turn. A user who is alone may start so many that small turns cost nothing, and the next user waits little.
* Anonymous requests have the lowest share: a few start in each turn of the event loop, and only while no user's request waits. The
  public cluster-info, the first request of every joining machine, is so served at once by an idle server. A fixed rate may be
  configured in addition; beyond it the answer is 429.
* Queues are bounded. A full queue answers 429 with Retry-After, which client-go honours.
* Seats, queues and the rate of anonymous requests are those of the host: workers add up what each has taken. Turns are those of one
  event loop. Two workers may take the last seat at the same time, so the host has at most one more request for each other worker.
* A seat that another worker gives back is noticed within LOOK_SECONDS. An anonymous request leaves a free seat to each other
  worker, where users may wait.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable

from mooring.authn.authfailures import Bucket
from mooring.clock import Clock
from mooring.errors import TooManyRequestsError
from mooring.server.sharedmemory import ALONE, Counted, WorkerMemory

SEATS = 600
"""kube-apiserver's 400 read-only + 200 mutating requests in flight."""
QUEUE_PER_USER = 5_000
"""Waiting requests of one user. A thousand machines may join with one token, and a thousand watches of one user may be resumed, at
once."""
QUEUED_USERS = 5_000
"""Users that may wait at once: all nodes of a large cluster fit."""
PER_TURN = 1
"""Requests that one user may start in a turn while several are active: others wait about 0.1 ms for a storm."""
ALONE_PER_TURN = 32
"""Requests that a user who is alone may start in a turn. The next user waits about 3 ms for them, once; then turns are shared."""
SHARED_SECONDS = 0.1
"""Time for which turns stay shared after a change of user. Shared turns slow a storm by a third, mostly because its client wakes
more often. A user with rarer requests loses a few milliseconds by unshared turns."""
ANONYMOUS_SEATS = 60
"""Seats of anonymous requests: a tenth."""
ANONYMOUS_PER_TURN = 8
"""Anonymous requests that start in a turn: at about 50 µs each, others wait at most half a millisecond."""
ANONYMOUS_QUEUE = 2_000
"""Anonymous requests that may wait. A burst of a thousand joining machines fits; beyond it the answer is 429."""

LOOK_SECONDS = 0.005
"""Time between two looks at the seats of other workers, while requests wait."""
ANONYMOUS_BUCKET = "anonymous requests"
"""Name of the bucket of anonymous requests among those of sources, which are addresses."""


class FlowControl:
    """Flow control of one worker."""

    def __init__(
        self, clock: Clock, *, seats: int = SEATS, anonymous_per_second: float = 0.0, share: WorkerMemory = ALONE
    ) -> None:
        self._clock = clock
        self._seats = seats
        self.free_seats = seats
        """Seats that this worker has not taken."""
        self._host = None if share.alone else HostSeats(share)
        self._most_of_user = max(1, QUEUE_PER_USER // share.workers)
        self._waiting_for_seat: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._waiting_for_turn: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Waiting requests of users who have used their share of this turn."""
        self._turn: dict[str, int] = {}
        self._last_user = ""
        self._per_turn = ALONE_PER_TURN
        """Requests that each user may start in a turn."""
        self._shared_until = 0.0
        self._anonymous_seats = self._anonymous_free = min(ANONYMOUS_SEATS, seats)
        self._anonymous_waiting: deque[asyncio.Future[None]] = deque()
        self._anonymous_turn = 0
        self._turn_scheduled = False
        self._look: asyncio.TimerHandle | None = None
        self._rate = anonymous_per_second
        self._buckets = share.buckets()
        self.queued = 0
        self.rejected = 0

    @property
    def shared(self) -> bool:
        """True while several users are active."""
        return self._per_turn == PER_TURN

    def try_enter(self, user: str) -> bool:
        """Take a seat if one is free, no request waits for it, and `user` has a share of this turn left. Return False otherwise."""
        if user != self._last_user:
            self._note_user_change(user)
        if not self.free_seats or self._waiting_for_seat or self._turn.get(user, 0) >= self._per_turn:
            return False
        if self._host is not None and not self._host.take(self._seats - self.free_seats + 1, self._seats):
            return False
        self.free_seats -= 1
        self._count(user)
        return True

    async def enter(self, user: str) -> None:
        """Wait for a seat in turn. Raises TooManyRequestsError when the queue of this user, or the table of users, is full."""
        if self.try_enter(user):
            return
        queue = self._waiting_for_seat.get(user) or self._waiting_for_turn.get(user)
        if queue is None:
            if self._queued_users() >= QUEUED_USERS:
                self.rejected += 1
                raise TooManyRequestsError
            queue = self._queues(user)[user] = deque()
        if len(queue) >= self._most_of_user:
            self.rejected += 1
            raise TooManyRequestsError
        self.queued += 1
        await self._wait(queue, self.leave)

    def leave(self) -> None:
        """Give the seat back, and hand free seats to waiting users, then to anonymous requests."""
        self.free_seats += 1
        if self._host is not None:
            self._host.seats.set(self._seats - self.free_seats)
        self._serve()
        # Anonymous requests get a seat only while no request of a user waits.
        self._serve_anonymous()

    async def enter_anonymous(self) -> bool:
        """Take a seat after all waiting users. Return True when the request had to wait.

        Raises TooManyRequestsError beyond the configured rate or a full queue.
        """
        if self._rate and not self._within_rate():
            self.rejected += 1
            raise TooManyRequestsError
        if not self._anonymous_waiting and self._anonymous_may_run():
            self._take_anonymous()
            return False
        elsewhere = 0 if self._host is None else self._host.queued_anonymous.others
        if len(self._anonymous_waiting) + elsewhere >= ANONYMOUS_QUEUE:
            self.rejected += 1
            raise TooManyRequestsError
        self.queued += 1
        await self._wait(self._anonymous_waiting, self.leave_anonymous)
        return True

    def leave_anonymous(self) -> None:
        """Give the seat of an anonymous request back."""
        self._anonymous_free += 1
        if self._host is not None:
            self._host.anonymous.set(self._anonymous_seats - self._anonymous_free)
        self.leave()

    async def _wait(self, queue: deque[asyncio.Future[None]], give_back: Callable[[], None]) -> None:
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(ticket)
        if self._host is not None:
            self._note_queues()
        try:
            await ticket
        except asyncio.CancelledError:
            if ticket.done() and not ticket.cancelled():
                # The seat was handed over just before the cancellation. It would be lost otherwise.
                give_back()
            raise

    def _note_user_change(self, user: str) -> None:
        """Note a change of user: turns are shared for a while."""
        if self._last_user:
            self._per_turn = PER_TURN
            self._shared_until = self._clock.monotonic() + SHARED_SECONDS
        self._last_user = user

    def _count(self, user: str) -> None:
        self._turn[user] = self._turn.get(user, 0) + 1
        self._schedule_turn()

    def _queues(self, user: str) -> OrderedDict[str, deque[asyncio.Future[None]]]:
        """Return the queues in which requests of `user` wait: for a seat, or for the next turn."""
        return self._waiting_for_turn if self._turn.get(user, 0) >= self._per_turn else self._waiting_for_seat

    def _serve(self) -> None:
        """Hand free seats to users in turn, until no seat is free or no request waits for one in this turn."""
        while self.free_seats and self._waiting_for_seat and self._host_has_seat():
            user, queue = self._waiting_for_seat.popitem(last=False)
            ticket = queue.popleft()
            # The request may have been cancelled while it waited. Its seat goes to the next one.
            if not ticket.done():
                self._take()
                self._count(user)
                ticket.set_result(None)
            if queue:
                # At the end: round robin, so that a storm of one user does not delay the others.
                self._queues(user)[user] = queue

    def _anonymous_may_run(self) -> bool:
        return (
            not self._waiting_for_seat
            and self.free_seats > 0
            and self._anonymous_free > 0
            and self._anonymous_turn < ANONYMOUS_PER_TURN
            and (
                self._host is None
                or (
                    self._host.has_spare(self._seats - self.free_seats, self._seats)
                    and self._host.anonymous.others < self._anonymous_free
                )
            )
        )

    def _take_anonymous(self) -> None:
        self._take()
        self._anonymous_free -= 1
        self._anonymous_turn += 1
        if self._host is not None:
            self._host.anonymous.set(self._anonymous_seats - self._anonymous_free)
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
            self._per_turn = ALONE_PER_TURN
        self._waiting_for_seat.update(self._waiting_for_turn)
        self._waiting_for_turn.clear()
        self._serve()
        self._serve_anonymous()

    def _serve_anonymous(self) -> None:
        while self._anonymous_waiting and self._anonymous_may_run():
            ticket = self._anonymous_waiting.popleft()
            if not ticket.done():
                self._take_anonymous()
                ticket.set_result(None)

    def _take(self) -> None:
        self.free_seats -= 1
        if self._host is not None:
            self._host.seats.set(self._seats - self.free_seats)

    def _host_has_seat(self) -> bool:
        return self._host is None or self._host.seats.others < self.free_seats

    def _queued_users(self) -> int:
        here = len(self._waiting_for_seat) + len(self._waiting_for_turn)
        return here if self._host is None else here + self._host.queued_users.others

    def _note_queues(self) -> None:
        """Tell the other workers how many requests wait here, and look for their seats again soon."""
        host = self._host
        if host is None:
            return
        users = len(self._waiting_for_seat) + len(self._waiting_for_turn)
        host.queued_users.set(users)
        host.queued_anonymous.set(len(self._anonymous_waiting))
        if self._look is None and (users or self._anonymous_waiting):
            self._look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._look = None
        self._serve()
        self._serve_anonymous()
        self._note_queues()

    def _within_rate(self) -> bool:
        now, burst = self._clock.monotonic(), max(1.0, self._rate)

        def take(bucket: Bucket) -> float:
            bucket.refill(now, burst, self._rate)
            if bucket.level < 1.0:
                return 0.0
            bucket.level -= 1.0
            return 1.0

        return self._buckets.change(ANONYMOUS_BUCKET, Bucket(burst, now), take) > 0


class HostSeats:
    """Seats and queues of all workers of a host."""

    def __init__(self, share: WorkerMemory) -> None:
        self._other_workers = share.workers - 1
        self.seats = share.count(Counted.SEATS)
        self.anonymous = share.count(Counted.ANONYMOUS_SEATS)
        self.queued_users = share.count(Counted.QUEUED_USERS)
        self.queued_anonymous = share.count(Counted.QUEUED_ANONYMOUS)

    def take(self, mine: int, seats: int) -> bool:
        """Note that this worker has `mine` of the host's `seats`. Return False, and note nothing, when they are all taken."""
        if mine + self.seats.others > seats:
            return False
        self.seats.set(mine)
        return True

    def has_spare(self, mine: int, seats: int) -> bool:
        """Return True while a seat is free for this worker, and one for each other."""
        return mine + self.seats.others + self._other_workers < seats
