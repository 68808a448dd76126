"""Leader election: the controllers run in the process that holds a Lease (the algorithm of client-go's leaderelection).

Rules kept here:
1. The holder renews every 2 s and gives up after 10 s without success. Others take over 15 s after the last renewal they observed,
   measured on their own clock; clocks of two machines are never compared.
2. Work starts only after the Lease is acquired, and is cancelled before renewal stops; at once when another holder is observed.
   The 10 s count from before a renewal request, so they also bound one that hangs.
3. A clean stop releases the Lease, so that the next holder starts at once. A holder whose process on this machine no longer exists
   is also succeeded at once: a restart after `kill -9` does not wait.
4. Every write is a compare-and-swap; the loser reads the Lease again. Any other error counts as a failed renewal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from mooring.apimachinery.schema import Obj
from mooring.clock import Clock, rfc3339_micro
from mooring.errors import AlreadyExistsError, ConflictError, MooringError, NotFoundError
from mooring.reconcile.clusterapi import ClusterApi

log = logging.getLogger("mooring.controllers")

LEASE_SECONDS = 15
RENEW_SECONDS = 10.0
RETRY_SECONDS = 2.0
"""kube-controller-manager's defaults."""
NAMESPACE = "kube-system"
NAME = "mooring-controllers"


class LeaderElector:
    """Competes for one Lease and runs work while it holds it."""

    def __init__(
        self,
        api: ClusterApi,
        clock: Clock,
        identity: str,
        holder_is_gone: Callable[[str], bool] = lambda holder: False,
    ) -> None:
        self._api = api
        self._clock = clock
        self._identity = identity
        self._holder_is_gone = holder_is_gone
        self._observed: tuple[str, str] = ("", "")
        self._observed_at = 0.0
        self.leading = False

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the Lease and run `work` while holding it, until cancelled. Work that returns is started again."""
        try:
            while True:
                requested = self._clock.monotonic()
                if await self._acquire_or_renew():
                    self.leading = True
                    log.info("controllers run in this process (%s)", self._identity)
                    await self._lead(work, requested)
                    self.leading = False
                await self._clock.sleep(RETRY_SECONDS)
        finally:
            if self.leading:
                self.leading = False
                await self._release()

    async def _lead(self, work: Callable[[], Awaitable[None]], renewed: float) -> None:
        """Run `work` until it ends or the Lease, last renewed at `renewed`, is lost."""
        running = asyncio.ensure_future(work())
        try:
            while await self._time_passes(RETRY_SECONDS, running):
                requested = self._clock.monotonic()
                attempt = asyncio.ensure_future(self._acquire_or_renew())
                try:
                    await self._time_passes(renewed + RENEW_SECONDS - requested, attempt, running)
                    if attempt.done() and attempt.result():
                        renewed = requested
                        continue
                finally:
                    attempt.cancel()
                if running.done():
                    return
                if self._observed[0] not in ("", self._identity):
                    log.warning(
                        "%s holds the controllers' Lease now; stopping the controllers of this process",
                        self._observed[0],
                    )
                    return
                if self._clock.monotonic() - renewed >= RENEW_SECONDS:
                    log.warning("the controllers' Lease could not be renewed; stopping the controllers of this process")
                    return
        finally:
            running.cancel()
            (outcome,) = await asyncio.gather(running, return_exceptions=True)
            if isinstance(outcome, Exception):
                log.error("the controllers stopped: %s; starting them again", outcome, exc_info=outcome)

    async def _time_passes(self, seconds: float, *ends: asyncio.Future[Any]) -> bool:
        """Wait `seconds`, or until one of `ends` is done; return true when the time passed first."""
        sleep = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait((sleep, *ends), return_when=asyncio.FIRST_COMPLETED)
            return not any(end.done() for end in ends)
        finally:
            sleep.cancel()

    async def _acquire_or_renew(self) -> bool:
        """Acquire or renew the Lease. Return false when another process holds it or was faster, or the request fails."""
        try:
            return await self._write_lease()
        except (AlreadyExistsError, ConflictError, NotFoundError):
            return False
        except MooringError as error:
            log.warning("the controllers' Lease cannot be renewed: %s", error)
        except Exception:
            log.exception("the controllers' Lease cannot be renewed")
        return False

    async def _write_lease(self) -> bool:
        try:
            lease = await self._api.get("leases", NAMESPACE, NAME)
        except NotFoundError:
            await self._api.create("leases", self._lease_object(None))
            return True
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity", "")
        state = (holder, spec.get("renewTime", ""))
        if state != self._observed:
            self._observed, self._observed_at = state, self._clock.monotonic()
        if holder not in ("", self._identity) and not self._holder_is_gone(holder):
            duration = spec.get("leaseDurationSeconds", LEASE_SECONDS)
            if self._clock.monotonic() - self._observed_at < duration:
                return False
        await self._api.update("leases", self._lease_object(lease))
        self._observed = ("", "")
        return True

    def _lease_object(self, old: Obj | None) -> Obj:
        now = rfc3339_micro(self._clock.now())
        spec = dict((old or {}).get("spec") or {})
        if spec.get("holderIdentity") != self._identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = spec.get("leaseTransitions", 0) + (1 if old else 0)
        spec |= {"holderIdentity": self._identity, "renewTime": now, "leaseDurationSeconds": LEASE_SECONDS}
        metadata = (old or {}).get("metadata", {"name": NAME, "namespace": NAMESPACE})
        return {"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": dict(metadata), "spec": spec}

    async def _release(self) -> None:
        try:
            lease = await self._api.get("leases", NAMESPACE, NAME)
            if (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                released = {**lease, "spec": {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}}
                await self._api.update("leases", released)
        except MooringError as error:
            log.warning("the controllers' Lease could not be released: %s; the next holder waits for it", error)
