"""Controllers outside of a server: the work of the process that holds the Lease.

Rules kept here:
* Before controllers start, one object of each kind that they watch is listed. A controller whose kinds are not served, or not
  allowed, does not run; one warning says why and what to do. The others run.
* What was refused is tried again after 5 s, and less often later, and the controllers start again when it is there. An API server
  that has just started refuses what it allows a second later.
* A kind that is refused later, or that the server deletes, stops all controllers, and the same check decides which of them start
  again.
* A server that cannot be reached is waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mooring.apimachinery.schema import Obj
from mooring.clock import Clock, doubling
from mooring.controllers.actions import EVERYTHING, Controller, Scope
from mooring.errors import ApiError, ForbiddenError, MooringError, NotFoundError
from mooring.reconcile.leaderelection import FencedApi
from mooring.reconcile.loop import Reconciler
from mooring.reconcile.remote import KindDeletedError, RemoteApi

log = logging.getLogger("mooring.controllers")

FIRST_CHECK = 5.0
LONGEST_CHECK = 60.0
"""Seconds until a refused kind is tried again: permissions and kinds are added by people."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
"""Seconds of back-off while the server cannot be reached, as in the client's list and watch."""


MANIFESTS = "mooring controllers manifests"


class StandaloneControllers:
    """Controllers that run against one cluster while this process holds the Lease."""

    def __init__(
        self,
        controllers: Sequence[Controller],
        make_api: Callable[[], RemoteApi],
        scopes: Mapping[str, Scope],
        clock: Clock,
        entropy: Callable[[int], bytes],
        may_write: Callable[[], bool] = lambda: True,
        manifests: str = MANIFESTS,
        event_written: Callable[[Obj], None] = lambda event: None,
    ) -> None:
        """`may_write` is asked before each write; always true without a Lease. `manifests`: the command that prints the objects
        which these controllers need, for messages. `event_written`: see `Reconciler`."""
        self._event_written = event_written
        self._manifests = manifests
        self._may_write = may_write
        self._controllers = controllers
        self._make_api = make_api
        self._scopes = scopes
        self._clock = clock
        self._entropy = entropy
        self._reported: dict[str, str] = {}
        self._reconciler: Reconciler | None = None
        self.running: tuple[str, ...] = ()
        """Names of the controllers that run now."""

    @property
    def stopped(self) -> Mapping[str, str]:
        """Names of the controllers that cannot run, each with the reason."""
        return self._reported

    @property
    def healthy(self) -> bool:
        """False after the loop failed, until it runs again."""
        return self._reconciler is None or self._reconciler.healthy

    async def run(self) -> None:
        """Run the controllers until cancelled, or until one of their kinds is refused or allowed again."""
        api = self._make_api()
        refusals = await self._refusals(api, {plural for one in self._controllers for plural in one.watches})
        runnable = [one for one in self._controllers if refusals.keys().isdisjoint(one.watches)]
        self._report(refusals)
        self._reconciler = Reconciler(
            runnable,
            FencedApi(api, self._may_write),
            self._clock,
            self._entropy,
            event_written=self._event_written,
        )
        self.running = tuple(one.name for one in runnable)
        work: list[asyncio.Future[Any]] = []
        if runnable:
            log.info("running %s", ", ".join(self.running))
            work += [asyncio.ensure_future(self._reconciler.run()), asyncio.ensure_future(api.refused())]
        if refusals:
            work.append(asyncio.ensure_future(self._wait_for_change(api, refusals)))
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises what ended the loop
        finally:
            self.running = ()
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def _refusals(self, api: RemoteApi, plurals: Iterable[str]) -> dict[str, ApiError]:
        """Return the refusal of each kind that cannot be followed. Waits for a server that cannot be reached."""
        pauses = doubling(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            try:
                return {plural: error for plural in sorted(plurals) if (error := await _refusal(api, plural))}
            except MooringError as error:
                log.warning("the controllers wait: %s", error)
            await self._clock.sleep(next(pauses))

    async def _wait_for_change(self, api: RemoteApi, refusals: Mapping[str, ApiError]) -> None:
        """Return when a kind that was refused is not refused any more."""
        for pause in doubling(FIRST_CHECK, LONGEST_CHECK):
            await self._clock.sleep(pause)
            if (await self._refusals(api, refusals)).keys() != refusals.keys():
                return

    def _report(self, refusals: Mapping[str, ApiError]) -> None:
        """Log each controller that cannot run, unless that was logged before."""
        reported = {}
        for controller in self._controllers:
            refused = {plural: refusals[plural] for plural in controller.watches if plural in refusals}
            if refused:
                causes = [_cause(plural, self._scopes, error) for plural, error in refused.items()]
                reported[controller.name] = "; ".join((*causes, _remedy(refused.values(), self._manifests)))
                if reported[controller.name] != self._reported.get(controller.name):
                    log.warning("%s does not run: %s", controller.name, reported[controller.name])
        self._reported = reported


async def _refusal(api: RemoteApi, plural: str) -> ApiError | None:
    """Return the error of a server that does not serve a kind or does not allow it. Raises other errors."""
    try:
        await api.check(plural)
    except (NotFoundError, ForbiddenError) as error:
        return error
    return None


def _cause(plural: str, scopes: Mapping[str, Scope], error: ApiError) -> str:
    """Return why a kind cannot be followed."""
    if isinstance(error, KindDeletedError):
        return str(error)
    if isinstance(error, NotFoundError):
        return f"the server does not serve {plural}"
    return f"list and watch of {plural}{scopes.get(plural, EVERYTHING)} are not allowed ({error})"


def _remedy(errors: Iterable[ApiError], manifests: str) -> str:
    """Return what ends refusals."""
    if any(isinstance(error, ForbiddenError) for error in errors):
        return f"apply what {manifests} prints and run as its ServiceAccount mooring-controllers, or grant this user the rights"
    return f"apply what {manifests} prints"
