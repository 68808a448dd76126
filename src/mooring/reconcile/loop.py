"""The one generic loop that runs every controller (law 7).

Rules kept here:
* A controller's plan is called with views and `now`, never with anything it could change; the loop applies what it asks for.
* One key is in one pair of hands. Several keys of a controller are worked on side by side, so that their writes share commits.
* Actions are applied in the order of the plan; only deletes that follow each other are side by side, for the same reason.
* Plans share one thread with everything else. A key whose plan was long rests twice as long before it is planned again, so that
  a stream of events about thousands of objects costs a third of the time at most, and many of them are planned together.
* A precondition that no longer holds is no error: the event that broke it plans the key again; so does the loop itself.
* A plan that fails is logged with its key, never with an object's content, and tried again with back-off; it stops nobody else.
  Neither does an object that a controller cannot read: it would otherwise make all controllers blind.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from mooring.apimachinery.schema import Obj
from mooring.clock import Clock
from mooring.controllers.actions import Action, Ask, Controller, Create, Delete, Key, Requeue, Retry, Update
from mooring.errors import AlreadyExistsError, ConflictError, ForbiddenError, MooringError, NotFoundError
from mooring.reconcile.clusterapi import ClusterApi
from mooring.reconcile.workqueue import WorkQueue

log = logging.getLogger("mooring.controllers")

WORKERS = 16
"""Keys of one controller worked on side by side: as many writes as one group commit usefully takes."""
LONG_PLAN = 0.005
"""Seconds of planning from which a key has to rest: ordinary plans take a tenth of that."""
REST = 2.0
"""Times the length of its plan: with 5 000 tokens to sign that is less than 0.2 s."""
MAX_ASKS = 8
"""How often one plan may ask before it must decide."""


class Reconciler:
    """Runs controllers against one cluster until cancelled."""

    def __init__(
        self,
        controllers: Sequence[Controller],
        api: ClusterApi,
        clock: Clock,
        entropy: Callable[[int], bytes],
        workers: int = WORKERS,
    ) -> None:
        self._controllers = controllers
        self._api = api
        self._clock = clock
        self._entropy = entropy
        self._workers = workers
        self._failed = False
        self._queues: dict[str, WorkQueue] = {}

    @property
    def healthy(self) -> bool:
        """False from when the loop itself broke until it runs again; a failing plan does not break it."""
        return not self._failed

    def plan_again(self, *names: str) -> None:
        """Plan every key of the controllers named: something changed that is no object. Without effect unless running."""
        for controller in self._controllers:
            queue = self._queues.get(controller.name)
            if controller.name not in names or queue is None:
                continue
            for plural in controller.watches:
                for obj in self._api.views[plural].list():
                    self._wake(controller, queue, plural, obj, gone=False)

    def _wake(self, controller: Controller, queue: WorkQueue, plural: str, obj: Obj, *, gone: bool) -> None:
        try:
            keys = controller.keys(plural, obj, gone, self._api.views)
        except Exception:
            log.exception("%s: an event of %s was not understood", controller.name, plural)
            return
        for key in keys:
            queue.add(key)

    async def run(self) -> None:
        """Follow, plan and apply until cancelled."""
        queues = {controller.name: WorkQueue(self._clock) for controller in self._controllers}
        self._queues = queues
        woken: dict[str, list[tuple[Controller, WorkQueue]]] = {}
        for controller in self._controllers:
            for plural in controller.watches:
                woken.setdefault(plural, []).append((controller, queues[controller.name]))

        def on_event(plural: str, obj: Obj, gone: bool) -> None:
            for controller, queue in woken[plural]:
                self._wake(controller, queue, plural, obj, gone=gone)

        try:
            stop = await self._api.follow(sorted(woken), on_event)
            try:
                self._failed = False
                async with asyncio.TaskGroup() as group:
                    for controller in self._controllers:
                        queue = queues[controller.name]
                        group.create_task(queue.run_schedule())
                        for _ in range(self._workers):
                            group.create_task(self._work(controller, queue))
            finally:
                self._queues = {}
                await stop()
        except Exception:
            self._failed = True
            raise

    async def _work(self, controller: Controller, queue: WorkQueue) -> None:
        while True:
            key = await queue.take()
            try:
                planning = await self._reconcile(controller, queue, key)
                if planning > LONG_PLAN:
                    await self._clock.sleep(REST * planning)
            finally:
                queue.done(key)

    async def _reconcile(self, controller: Controller, queue: WorkQueue, key: Key) -> float:
        """Plan and apply; the seconds that planning took."""
        begun = planned = self._clock.monotonic()
        try:
            actions = controller.plan(key, self._api.views, self._clock.now(), self._entropy)
            planned = self._clock.monotonic()
            settled = await self._apply(controller, queue, key, actions)
        except MooringError as error:
            log.warning("%s %s: %s; trying again in %.3g s", controller.name, _named(key), error, queue.retry(key))
        except Exception:
            log.exception("%s %s: trying again in %.3g s", controller.name, _named(key), queue.retry(key))
        else:
            if settled:
                queue.forget(key)
        return planned - begun

    async def _apply(self, controller: Controller, queue: WorkQueue, key: Key, actions: Sequence[Action]) -> bool:
        """Apply in order; False when the key has to be planned again with back-off."""
        asked = 0
        pending = deque(actions)
        while pending:
            action = pending.popleft()
            if isinstance(action, Requeue):
                queue.add_at(key, action.at)
            elif isinstance(action, Retry):
                log.info("%s %s: %s", controller.name, _named(key), action.why)
                queue.retry(key)
                return False
            elif isinstance(action, Ask):
                asked += 1
                if asked > MAX_ASKS:
                    raise MooringError("the plan asks for ever")
                pending.extendleft(reversed(action.answered(await self._api.allows(action.review))))
            elif isinstance(action, Delete) and pending and isinstance(pending[0], Delete):
                await self._delete_together([action, *_leading_deletes(pending)])
            elif not await self._change(action):
                queue.retry(key)
                return False
        return True

    async def _delete_together(self, actions: Sequence[Delete]) -> None:
        """Several at once; after a failure no further one is begun, and the first failure is raised when all have ended."""
        remaining = iter(actions)
        failures: list[Exception] = []

        async def work() -> None:
            for action in remaining:
                if failures:
                    return
                try:
                    await self._change(action)
                except Exception as error:
                    failures.append(error)

        await asyncio.gather(*(work() for _ in range(min(self._workers, len(actions)))))
        if failures:
            raise failures[0]

    async def _change(self, action: Create | Update | Delete) -> bool:
        """Apply one change; False when its precondition no longer held."""
        try:
            if isinstance(action, Create):
                await self._api.create(action.plural, action.obj)
            elif isinstance(action, Update):
                await self._api.update(action.plural, action.obj, action.subresource)
            else:
                await self._api.delete(action)
        except AlreadyExistsError:
            return True
        except NotFoundError:
            return True  # the object, or its namespace, went away: its event plans what is left to do
        except ConflictError:
            return isinstance(action, Delete)
        except ForbiddenError as error:
            if any(cause.reason == "NamespaceTerminating" for cause in error.details.causes):
                return True
            raise
        return True


def _leading_deletes(pending: deque[Action]) -> Iterator[Delete]:
    """Take the deletes that come next."""
    while pending and isinstance(pending[0], Delete):
        action = pending.popleft()
        assert isinstance(action, Delete)  # looked at above
        yield action


def _named(key: Key) -> str:
    return "/".join(part for part in key if part) or "everything"
