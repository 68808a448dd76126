"""Leader election by a Lease, and fencing: controllers write only while this process may."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import Clock, rfc3339_micro
from mooring.controllers.actions import CommitPrecondition, Delete
from mooring.errors import AlreadyExistsError, ConfigError, ConflictError, MooringError, NotFoundError, PeerError
from mooring.reconcile.clusterapi import ClusterApi, OnEvent

# Leader election: the controllers run in the process that holds a Lease (the algorithm of client-go's leaderelection).
#
# Rules kept here:
# 1. The holder renews every 2 s and gives up after 10 s without success. Others take over 15 s after the last renewal they
#    observed, measured on their own clock; clocks of two machines are never compared. `Election` has these times.
# 2. Work starts only after the Lease is acquired, and is cancelled before renewal stops; at once when another holder is observed.
#    The 10 s count from before a renewal request, so they also bound one that hangs.
# 3. A clean stop releases the Lease, so that the next holder starts at once. A holder whose process on this machine no longer
#    exists is also succeeded at once: a restart after `kill -9` does not wait.
# 4. A process that was stopped and goes on writes nothing until it has renewed the Lease (`may_write`).
# 5. Every write is a compare-and-swap; the loser reads the Lease again. Any other error counts as a failed renewal, and so does an
#    attempt without an answer in the 10 s. It is logged when it begins, not at every attempt.

log = logging.getLogger("mooring.controllers")

LEASE_SECONDS = 15
RENEW_SECONDS = 10.0
RETRY_SECONDS = 2.0
"""kube-controller-manager's defaults."""
NAMESPACE = "kube-system"
NAME = "mooring-controllers"
RELEASE_ATTEMPTS = 3
"""Writes of a release: one renewal can be under way, and a person may change the Lease."""
RELEASE_SECONDS = 2.0
"""Time for a release. A stop waits no longer for a store that does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Election:
    """The Lease for which processes compete, and its times in seconds. The renewal deadline is shorter than the Lease."""

    namespace: str = NAMESPACE
    name: str = NAME
    lease_seconds: float = LEASE_SECONDS
    renew_seconds: float = RENEW_SECONDS
    retry_seconds: float = RETRY_SECONDS


class LeaderElector:
    """Competes for one Lease and runs work while it holds it."""

    def __init__(
        self,
        api: ClusterApi,
        clock: Clock,
        identity: str,
        holder_is_gone: Callable[[str], bool] = lambda holder: False,
        election: Election | None = None,
    ) -> None:
        self._api = api
        self._clock = clock
        self._identity = identity
        self._holder_is_gone = holder_is_gone
        self._election = election or Election()
        self._waiting_for = ""
        self.failure = ""
        """Message of the last attempt to acquire or renew the Lease; "" when the server answered it."""
        self._stopped_because = ""
        self._observed: tuple[str, str] = ("", "")
        self._observed_at = 0.0
        self.leading = False
        self._renewed = 0.0
        self._look = asyncio.Event()

    @property
    def may_write(self) -> bool:
        """True while this process leads and has renewed the Lease in time (`mooring.reconcile.leaderelection`)."""
        return self.leading and self._clock.monotonic() - self._renewed < self._election.renew_seconds

    def look_now(self) -> None:
        """Look at the Lease again at once: its holder may have ended."""
        self._look.set()

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the Lease and run `work` while holding it, until cancelled. Work that returns is started again."""
        try:
            while True:
                # Taken before the request: the Lease may be stored long before the answer arrives, and others measure
                # from then.
                requested = self._clock.monotonic()
                if await self._acquire_or_renew(self._election.renew_seconds):
                    self.leading, self._renewed = True, requested
                    log.info("controllers run in this process (%s)", self._identity)
                    await self._lead(work)
                    self.leading = False
                await self._until_next_look()
        finally:
            if self.leading:
                # Before the release: from then on another process may hold the Lease, and this one must not write.
                self.leading = False
                await self._release()

    async def _until_next_look(self) -> None:
        look = asyncio.ensure_future(self._look.wait())
        try:
            await self._time_passes(self._election.retry_seconds, look)
        finally:
            look.cancel()
            self._look.clear()

    async def _lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` until it ends or the Lease is lost."""
        running = asyncio.ensure_future(work())
        try:
            while await self._time_passes(self._election.retry_seconds, running):
                # The 10 seconds are counted from before the request, so they bound a request that hangs, too.
                requested = self._clock.monotonic()
                seconds = self._renewed + self._election.renew_seconds - requested
                attempt = asyncio.ensure_future(self._acquire_or_renew(seconds))
                try:
                    await asyncio.wait((attempt, running), return_when=asyncio.FIRST_COMPLETED)
                    if attempt.done() and attempt.result():
                        self._renewed = requested
                        continue
                finally:
                    attempt.cancel()
                if running.done():
                    return
                # Another process holds the Lease and writes already: this one does not wait for the deadline.
                if self._observed[0] not in ("", self._identity):
                    log.warning(
                        "%s holds the controllers' Lease now; stopping the controllers of this process",
                        self._observed[0],
                    )
                    return
                if self._clock.monotonic() - self._renewed >= self._election.renew_seconds:
                    log.warning("the controllers' Lease could not be renewed; stopping the controllers of this process")
                    return
        finally:
            running.cancel()
            # Awaited, so that the work has stopped before the Lease is released.
            (outcome,) = await asyncio.gather(running, return_exceptions=True)
            if isinstance(outcome, Exception) and str(outcome) != self._stopped_because:
                fault = None if isinstance(outcome, MooringError) else outcome
                log.error("the controllers stopped: %s; starting them again", outcome, exc_info=fault)
            self._stopped_because = str(outcome) if isinstance(outcome, Exception) else ""

    async def _time_passes(self, seconds: float, *ends: asyncio.Future[Any]) -> bool:
        """Wait `seconds`, or until one of `ends` is done; return true when the time passed first."""
        sleep = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait((sleep, *ends), return_when=asyncio.FIRST_COMPLETED)
            return not any(end.done() for end in ends)
        finally:
            sleep.cancel()

    async def _acquire_or_renew(self, seconds: float) -> bool:
        """Acquire or renew the Lease. Return false when another process holds it or was faster, or the requests fail.

        Requests without an answer within `seconds` have failed: a server that hangs is as far away as one that is down.
        """
        writing = asyncio.ensure_future(self._write_lease())
        try:
            if await self._time_passes(seconds, writing):
                raise PeerError("no answer in time")
            acquired = writing.result()
        except (AlreadyExistsError, ConflictError, NotFoundError):
            acquired = False
        except MooringError as error:
            if str(error) != self.failure:
                log.warning("the controllers' Lease cannot be renewed: %s", error)
            self.failure = str(error)
            return False
        except Exception as error:
            log.exception("the controllers' Lease cannot be renewed")
            self.failure = type(error).__name__
            return False
        finally:
            writing.cancel()
        if self.failure:
            log.info("the controllers' Lease can be renewed again")
            self.failure = ""
        return acquired

    async def _write_lease(self) -> bool:
        try:
            lease = await self._api.get("leases", self._election.namespace, self._election.name)
        except NotFoundError:
            await self._create_lease()
            return True
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity", "")
        state = (holder, spec.get("renewTime", ""))
        # Measured on the clock of this process: clocks of two machines are never compared.
        if state != self._observed:
            self._observed, self._observed_at = state, self._clock.monotonic()
        if holder not in ("", self._identity) and not self._holder_is_gone(holder):
            duration = spec.get("leaseDurationSeconds", self._election.lease_seconds)
            if self._clock.monotonic() - self._observed_at < duration:
                self._report_holder(holder)
                return False
        # A compare-and-swap: of two processes that see an expired Lease one gets a conflict.
        await self._api.update("leases", self._lease_object(lease))
        self._observed = ("", "")
        self._waiting_for = ""
        return True

    async def _create_lease(self) -> None:
        try:
            await self._api.create("leases", self._lease_object(None))
        except NotFoundError:
            raise ConfigError(f'there is no namespace "{self._election.namespace}" for the Lease') from None

    def _report_holder(self, holder: str) -> None:
        if holder != self._waiting_for:
            self._waiting_for = holder
            log.info("the controllers run in %s; waiting for its Lease", holder)

    def _lease_object(self, old: Obj | None) -> Obj:
        now = rfc3339_micro(self._clock.now())
        spec = dict((old or {}).get("spec") or {})
        if spec.get("holderIdentity") != self._identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = spec.get("leaseTransitions", 0) + (1 if old else 0)
        spec |= {
            "holderIdentity": self._identity,
            "renewTime": now,
            "leaseDurationSeconds": int(self._election.lease_seconds),
        }
        metadata = (old or {}).get("metadata", {"name": self._election.name, "namespace": self._election.namespace})
        return {"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": dict(metadata), "spec": spec}

    async def _release(self) -> None:
        """Release the Lease. A renewal that was under way when it was cancelled may be stored between the read and the write."""
        problem = ""
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                for left in reversed(range(RELEASE_ATTEMPTS)):
                    try:
                        await self._release_once()
                        return
                    except ConflictError:
                        if not left:
                            raise
        except TimeoutError:
            problem = "the store does not answer"
        except MooringError as error:
            problem = str(error)
        log.warning("the controllers' Lease could not be released: %s; the next holder waits for it", problem)

    async def _release_once(self) -> None:
        lease = await self._api.get("leases", self._election.namespace, self._election.name)
        if (lease.get("spec") or {}).get("holderIdentity") == self._identity:
            released = {**lease, "spec": {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}}
            await self._api.update("leases", released)


# Fencing: writes of controllers are sent only while this process may write, and only with a precondition.
#
# Rules kept here:
# * A process that was stopped for longer than the Lease does not know it when it goes on: what it planned before is not written
#   any more, because the age of its last renewal is compared before every write.
# * A write that was sent before the stop and arrives after it fails, because it carries what it was planned on: an update the
#   resourceVersion, a deletion the uid, a creation the name. An update without one is refused here, before it is sent.


class FencedError(MooringError):
    """A write that was not sent."""


class FencedApi:
    """A `ClusterApi` whose writes need `may_write`. Reads and watches pass."""

    def __init__(self, api: ClusterApi, may_write: Callable[[], bool]) -> None:
        self._api = api
        self._may_write = may_write

    @property
    def views(self) -> Views:
        return self._api.views

    async def follow(self, plurals: Sequence[str], on_event: OnEvent) -> Callable[[], Awaitable[None]]:
        return await self._api.follow(plurals, on_event)

    async def get(self, plural: str, namespace: str, name: str) -> Obj:
        return await self._api.get(plural, namespace, name)

    async def create(self, plural: str, obj: Obj) -> Obj:
        self._check()
        return await self._api.create(plural, obj)

    async def update(
        self, plural: str, obj: Obj, subresource: str = "", precondition: CommitPrecondition | None = None
    ) -> Obj:
        self._check()
        if not obj["metadata"].get("resourceVersion"):
            raise FencedError(f"an update of {plural} without a resourceVersion is not sent")
        return await self._api.update(plural, obj, subresource, precondition)

    async def delete(self, action: Delete) -> None:
        self._check()
        if not action.uid:
            raise FencedError(f"a deletion of {action.plural} without a uid is not sent")
        await self._api.delete(action)

    async def allows(self, review: Obj) -> bool:
        return await self._api.allows(review)

    def _check(self) -> None:
        if not self._may_write():
            raise FencedError("the controllers' Lease was not renewed in time, so that nothing is written")
