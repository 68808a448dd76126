"""Sends notices of the Events that this process wrote to the operator's own service.

Rules kept here (docs/operate.md#notices):
* The writer of an Event adds it once it is stored. No Event of another client is sent: a machine may create those.
* `add` never waits and never raises. At most MAX_WAITING notices wait; beyond that the oldest is dropped and counted.
* One request at a time, in the order of the Events, with a time of its own for the whole of it. Requests of clients wait for none.
* An attempt that fails is repeated after a pause, up to MAX_AGE. A refusal (`mooring.trust.notices`) ends the attempts.
* Redirects are not followed, and of a response at most MAX_ANSWER bytes are read.
* The log has one line when delivery begins to fail and one when it works again. Neither has the path or the query of the URL.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mooring.apimachinery.schema import Obj
from mooring.client.http.connection import ConnectionPool
from mooring.client.http.requests import send_over
from mooring.client.http.tls import trusting, trusting_system_roots
from mooring.clock import Clock
from mooring.controlplane.datadirectory import Reloading
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.httpexchange import PROXY, HttpFailure, HttpRequest, HttpResponse
from mooring.trust.httpproxy import ProxySettingError
from mooring.trust.httpsurl import named_cas
from mooring.trust.notices import (
    REFUSED,
    SENT,
    EventNotice,
    NoticeSettings,
    Receiver,
    headers_of,
    notice_of,
    outcome_of,
    parse_signing_key,
)

log = logging.getLogger("mooring.controlplane")

MAX_WAITING = 1000
"""Notices in memory, at most 2 MiB: eight minutes of all Events that the controllers may write."""
ATTEMPT_SECONDS = 10.0
"""Time of one request. A receiver that only queues a notice answers within a second."""
LAST_SECONDS = 2.0
"""Time of the last attempts of a process that stops: short beside the time that a service manager waits."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds between attempts: a restart of the receiver is bridged at once, and one that is down is not flooded."""
MAX_AGE = timedelta(hours=24)
"""Age at which a notice is dropped: the receiver was down for a day, and people look at the cluster itself."""
MAX_ANSWER = 4096
"""Bytes of a response that are read, so that its connection can be used again; nothing of them is shown."""
DROPPED = "dropped"


def notifier_of(settings: NoticeSettings, cluster: str, reloading: Reloading, clock: Clock) -> Notifier | None:
    """Return the notifier of a process, None without a URL. Raises ConfigError for files that cannot be used.

    `cluster`: address under which clients reach the cluster.
    """
    return None if settings.notify_url is None else Notifier(settings.notify_url, settings, cluster, reloading, clock)


class Notifier:
    """Notices of one process, and their receiver."""

    def __init__(
        self, receiver: Receiver, settings: NoticeSettings, cluster: str, reloading: Reloading, clock: Clock
    ) -> None:
        self._receiver = receiver
        self._cluster = cluster
        self._clock = clock
        self._queue: deque[EventNotice] = deque()
        self._added = asyncio.Event()
        self._pause = FIRST_PAUSE
        self._counts = Counter({SENT: 0, DROPPED: 0, REFUSED: 0})
        self.problem = ""
        """Why the last attempt failed; "" when the receiver took the last notice."""
        self._key: Secret | None = None
        self._pool: ConnectionPool | None = None
        self._context: ssl.SSLContext | None = None
        """Trust for the next attempt, where it has changed."""
        if file := settings.notify_key_file:
            reloading.warn_if_exposed(file)
            self._use_key(file, _read("notify-key-file", reloading, file, partial(self._use_key, file)))
        if file := settings.notify_ca_file:
            self._use_ca(file, _read("notify-ca-file", reloading, file, partial(self._use_ca, file)))
        else:
            # At the start: the roots of a machine take longer to read than one turn of the event loop should.
            self._context = trusting_system_roots()

    def _use_key(self, file: str, content: bytes) -> None:
        try:
            self._key = parse_signing_key(content, file)
        except ConfigError as error:
            raise ConfigError(f"notify-key-file: {error}") from None

    def _use_ca(self, file: str, content: bytes) -> None:
        try:
            self._context = trusting(named_cas(content, file))
        except ConfigError as error:
            raise ConfigError(f"notify-ca-file: {error}") from None

    @property
    def waiting(self) -> int:
        """Notices that wait, with the one that is being sent."""
        return len(self._queue)

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of notices by what became of them."""
        return self._counts

    def report(self) -> Obj:
        """Return the state of delivery, without a secret."""
        return {
            "host": self._receiver.origin,
            "waiting": self.waiting,
            "dropped": self._counts[DROPPED] + self._counts[REFUSED],
            "problem": self.problem,
        }

    def add(self, event: Obj) -> None:
        """Let the notice of a stored Event wait for its turn. Never raises: an Event is written whatever becomes of its notice."""
        try:
            self._queue.append(notice_of(event, self._cluster, self._clock.now()))
        except Exception:
            log.exception("no notice of an Event")
            return
        if len(self._queue) > MAX_WAITING:
            self._drop(f"more than {MAX_WAITING} notices wait")
        self._added.set()

    def _drop(self, reason: str) -> None:
        """Drop the oldest notice."""
        self._queue.popleft()
        if not self._counts[DROPPED]:
            log.warning("notices to %s are dropped: %s", self._receiver.origin, reason)
        self._counts[DROPPED] += 1

    async def run(self) -> None:
        """Send notices until cancelled. Then those that wait get one more attempt each, within LAST_SECONDS."""
        try:
            while True:
                while not self._queue:
                    self._added.clear()
                    await self._added.wait()
                if self._clock.now() - self._queue[0].made > MAX_AGE:
                    self._drop("the receiver did not take them within a day")
                elif not await self._attempt():
                    pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
                    await self._clock.sleep(pause)
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_SECONDS):
                    while self._queue and await self._attempt():
                        pass
            if self._queue:
                log.warning("notices to %s that were not sent: %d", self._receiver.origin, len(self._queue))
            if self._pool is not None:
                await self._pool.close()

    async def _attempt(self) -> bool:
        """Send the oldest notice; return False when it has to be sent again."""
        notice = self._queue[0]
        try:
            reply = await self._send(notice)
        except Exception as error:
            # No failure of one attempt may end the task. The text of an unknown error could have the URL.
            reply = HttpFailure("", type(error).__name__)
        outcome = outcome_of(reply.status)
        self._note(outcome, reply)
        if outcome not in (SENT, REFUSED):
            return False
        self._counts[outcome] += 1
        self._pause = FIRST_PAUSE
        # Another one stands first when the queue overflowed meanwhile.
        if self._queue and self._queue[0] is notice:
            self._queue.popleft()
        return True

    async def _send(self, notice: EventNotice) -> HttpResponse | HttpFailure:
        request = HttpRequest(
            target="receiver",
            method="POST",
            url=self._receiver.origin,
            headers=headers_of(notice, self._key, self._clock.now()),
            body=notice.body,
            timeout=ATTEMPT_SECONDS,
            within=ATTEMPT_SECONDS,
            max_bytes=MAX_ANSWER,
            secret_target=self._receiver.target,
        )
        try:
            return await send_over(await self._connections(), request, self._clock)
        except ProxySettingError as error:
            return HttpFailure(PROXY, str(error))

    async def _connections(self) -> ConnectionPool:
        """Return the connections to the receiver, under the CAs of now."""
        context, self._context = self._context, None
        if self._pool is None or context is not None:
            if self._pool is not None:
                await self._pool.close()
            assert context is not None  # the first one is made with the notifier
            self._pool = ConnectionPool(context)
        return self._pool

    def _note(self, outcome: str, reply: HttpResponse | HttpFailure) -> None:
        """Keep the state of delivery, and log when it changes."""
        before = self.problem
        if outcome == SENT:
            self.problem = ""
        elif reply.status:
            is_redirect = 300 <= reply.status <= 399
            self.problem = f"it answers {reply.status}" + (", and redirects are not followed" if is_redirect else "")
        else:
            self.problem = reply.text if isinstance(reply, HttpFailure) else ""
        if self.problem and not before:
            log.warning("notices to %s fail: %s", self._receiver.origin, self.problem)
        elif before and not self.problem:
            log.info("notices to %s are sent again", self._receiver.origin)


class NoticeMetrics(Collector):
    """Metrics of notices, read at each scrape."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier

    def collect(self) -> list[Metric]:
        """Return the numbers as they are now."""
        results = CounterMetricFamily("mooring_notices_total", "Notices by result.", labels=("result",))
        for result, count in self._notifier.counts.items():
            results.add_metric((result,), count)
        text = "Notices that wait for their receiver."
        return [results, GaugeMetricFamily("mooring_notices_waiting", text, value=self._notifier.waiting)]


def _read(key: str, reloading: Reloading, file: str, use: partial[None]) -> bytes:
    try:
        return reloading.follow(file, use)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None
