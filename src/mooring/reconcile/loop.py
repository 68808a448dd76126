"""The controller loop: plans the keys of all controllers and applies the actions (law 7).

Rules kept here:
* A plan gets views and `now`, nothing that it could change; the loop applies the actions that it returns.
* One worker at a time handles a key. Several keys of a controller are handled concurrently, so that their writes share commits.
* Actions are applied in the order of the plan. Only consecutive deletes run concurrently, for the same reason.
* Plans share one thread with the server. After a long plan its key rests for twice the time that planning took, so that a stream
  of events about thousands of objects uses at most a third of the time, and many events are planned together.
* A certificate is published only once the issuance log has its entry (`mooring.reconcile.issuancelog`).
* A failed precondition is not an error: the change that broke it plans the key again, and so does the loop.
* A plan that needs an object which cannot be read fails, one log line says so once, and the other plans go on. The key is planned
  again with back-off, and when the object can be read.
* A namespace that holds objects of other servers waits in the same way: no change of the views would plan it again.
* Each Event that a controller wrote is passed on once it is stored, and none that exists already: another process wrote that one.
* An update that is made is logged with what its plan announces, and with nothing else.
* A failed plan is logged with its key, never with an object's content, and retried with back-off. Other keys go on. An object that
  a controller cannot parse is logged and skipped; otherwise it would stop the events for all controllers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence

from mooring.api.view import guarded
from mooring.apimachinery.schema import Obj
from mooring.bounded import Bounded
from mooring.clock import Clock
from mooring.controllers.actions import (
    Action,
    CheckAccess,
    Controller,
    Create,
    Delete,
    InThread,
    Key,
    RecordIssuance,
    Requeue,
    Resolve,
    Retry,
    Update,
)
from mooring.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    MooringError,
    NamespaceHeldError,
    NotFoundError,
    UnreadableObjectError,
)
from mooring.reconcile.clusterapi import ClusterApi
from mooring.reconcile.issuancelog import IssuanceLogWriter, KeyCertifiedError
from mooring.reconcile.resolver import ResolveNames, Resolver
from mooring.reconcile.workqueue import DeviceThreads, WorkQueue

log = logging.getLogger("mooring.controllers")

EVENTS = "events"
WORKERS = 16
"""Keys of one controller handled concurrently: as many writes as one group commit usefully takes."""
LONG_PLAN = 0.005
"""Seconds of planning after which a key rests; ordinary plans take a tenth of that."""
REST_FACTOR = 2.0
"""Rest of a key as a multiple of its planning time: less than 0.2 s with 5 000 tokens to sign."""
TURN_SECONDS = 0.005
"""Seconds of planning in one turn of the event loop. Most plans wait for nothing, and one event may name thousands of keys."""
CONFLICT_DELAY = 0.08
"""Seconds. Longest wait after a conflict: it means that another write succeeded, as when many machines join with one limited token,
so that waiting longer would only delay the last of them."""
HELD_DELAY = 60.0
"""Seconds. Longest wait for a namespace with objects of other servers: no event tells that they are gone."""
MAX_BLOCKED = 4096
"""Keys that are remembered with the reason for which they wait, about 1 MiB; beyond that a line may be logged again."""
MAX_ACCESS_CHECKS = 8
"""Access checks of one plan, and lookups of names, including those that its continuations return."""


class Reconciler:
    """Runs controllers against one cluster until cancelled."""

    def __init__(
        self,
        controllers: Sequence[Controller],
        api: ClusterApi,
        clock: Clock,
        entropy: Callable[[int], bytes],
        workers: int = WORKERS,
        resolve: ResolveNames | None = None,
        record: Callable[[Obj, bool], Awaitable[None]] | None = None,
        api_of: Callable[[str], ClusterApi] | None = None,
        event_written: Callable[[Obj], None] = lambda event: None,
    ) -> None:
        """`api_of` returns what a controller of a name writes through; by default all write through `api`.

        `event_written` is called with each Event that a controller has created, as it is stored.
        """
        self._event_written = event_written
        self._apis = {controller.name: api_of(controller.name) if api_of else api for controller in controllers}
        self._record = record or IssuanceLogWriter(api).append
        self._resolve = resolve or Resolver(clock).resolve
        self._controllers = controllers
        self._api = api
        self._clock = clock
        self._entropy = entropy
        self._workers = workers
        self._failed = False
        self._threads = DeviceThreads()
        self._planned = 0.0
        """Seconds of planning in this turn of the event loop."""
        self._turn = asyncio.Event()
        """Set while this turn has time for plans."""
        self._turn.set()
        self._queues: dict[str, WorkQueue] = {}
        self._blocked: Bounded[tuple[str, Key], str] = Bounded(MAX_BLOCKED)
        """Why a key waits, so that each reason is logged once."""

    @property
    def healthy(self) -> bool:
        """False after the loop itself failed, until it runs again. A failing plan does not count."""
        return not self._failed

    def plan_again(self, *names: str) -> None:
        """Enqueue every key of the named controllers, after a change outside the store. Has no effect unless running."""
        for controller in self._controllers:
            queue = self._queues.get(controller.name)
            if controller.name not in names or queue is None:
                continue
            for plural in controller.watches:
                for obj in self._api.views[plural].list():
                    self._enqueue(controller, queue, plural, obj, deleted=False)

    def _enqueue(self, controller: Controller, queue: WorkQueue, plural: str, obj: Obj, *, deleted: bool) -> None:
        try:
            keys = controller.keys(plural, obj, deleted, self._api.views)
        except Exception:
            log.exception("%s: an event of %s could not be processed", controller.name, plural)
            return
        for key in keys:
            queue.add(key)

    async def run(self) -> None:
        """Follow the watched kinds, plan and apply, until cancelled."""
        queues = {controller.name: WorkQueue(self._clock) for controller in self._controllers}
        self._queues = queues
        subscribers: dict[str, list[tuple[Controller, WorkQueue]]] = {}
        for controller in self._controllers:
            for plural in controller.watches:
                subscribers.setdefault(plural, []).append((controller, queues[controller.name]))

        def on_event(plural: str, obj: Obj, deleted: bool) -> None:
            for controller, queue in subscribers[plural]:
                self._enqueue(controller, queue, plural, obj, deleted=deleted)

        try:
            stop = await self._api.follow(sorted(subscribers), on_event)
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
                while not self._turn.is_set():
                    await self._turn.wait()
                planning = await self._reconcile(controller, queue, key)
                if self._planned <= TURN_SECONDS < self._planned + planning:
                    self._turn.clear()
                    asyncio.get_running_loop().call_soon(self._begin_turn)
                self._planned += planning
                # Plans share one thread with the server: a stream of events may use at most a third of the time.
                if planning > LONG_PLAN:
                    await self._clock.sleep(REST_FACTOR * planning)
            finally:
                queue.done(key)

    def _begin_turn(self) -> None:
        self._planned = 0.0
        self._turn.set()

    async def _reconcile(self, controller: Controller, queue: WorkQueue, key: Key) -> float:
        """Plan one key and apply the actions; return the seconds that planning took."""
        begun = planned = self._clock.monotonic()
        try:
            actions = controller.plan(key, guarded(self._api.views), self._clock.now(), self._entropy)
            planned = self._clock.monotonic()
            settled = await self._apply(controller, queue, key, actions)
        except UnreadableObjectError as error:
            queue.retry(key)
            self._log_once(controller, key, str(error))
        except NamespaceHeldError as error:
            queue.retry(key, HELD_DELAY)
            self._log_once(controller, key, str(error))
        except MooringError as error:
            log.warning("%s %s: %s; trying again in %.3g s", controller.name, _key_text(key), error, queue.retry(key))
        except Exception:
            log.exception("%s %s: trying again in %.3g s", controller.name, _key_text(key), queue.retry(key))
        else:
            if settled:
                self._blocked.pop((controller.name, key), None)
                queue.forget(key)
        return planned - begun

    def _log_once(self, controller: Controller, key: Key, problem: str, level: int = logging.WARNING) -> None:
        place = (controller.name, key)
        if self._blocked.get(place) == problem:
            return
        self._blocked[place] = problem
        log.log(level, "%s %s waits: %s", controller.name, _key_text(key), problem)

    async def _apply(self, controller: Controller, queue: WorkQueue, key: Key, actions: Sequence[Action]) -> bool:
        """Apply the actions in order; return false when the key must be planned again with back-off."""
        api, checks = self._apis[controller.name], 0
        pending = deque(actions)
        while pending:
            action = pending.popleft()
            if isinstance(action, Requeue):
                queue.add_at(key, action.at)
            elif isinstance(action, Retry):
                if action.reason:
                    self._log_once(controller, key, action.reason, logging.INFO)
                queue.retry(key)
                return False
            elif isinstance(action, RecordIssuance):
                # A certificate is published only once the issuance log has its entry, so the actions after this one wait.
                try:
                    await self._record(action.entry, action.fresh_key)
                except KeyCertifiedError:
                    queue.retry(key, CONFLICT_DELAY)
                    return False
            elif isinstance(action, CheckAccess | Resolve):
                checks += 1
                # Each check returns further actions, so a faulty plan could continue without end.
                if checks > MAX_ACCESS_CHECKS:
                    raise MooringError("the plan checks access or resolves names without end")
                # Before the other actions: they come after the check in the plan.
                pending.extendleft(reversed(await self._continue(action)))
            elif isinstance(action, InThread):
                pending.extendleft(reversed(await self._threads.run(action.work)))
            elif isinstance(action, Delete) and pending and isinstance(pending[0], Delete):
                await self._delete_together(api, [action, *_leading_deletes(pending)])
            elif not await self._change(api, action):
                queue.retry(key, CONFLICT_DELAY)
                return False
        return True

    async def _continue(self, action: CheckAccess | Resolve) -> Sequence[Action]:
        """Find out what the plan needs to know, and return its further actions."""
        if isinstance(action, CheckAccess):
            return action.then(await self._api.allows(action.review))
        return action.then(await self._resolve(action.names, action.requester))

    async def _delete_together(self, api: ClusterApi, actions: Sequence[Delete]) -> None:
        """Apply deletes concurrently. After a failure none is started; the first failure is raised when all have ended."""
        remaining = iter(actions)
        failures: list[Exception] = []

        async def work() -> None:
            for action in remaining:
                if failures:
                    return
                try:
                    await self._change(api, action)
                except Exception as error:
                    failures.append(error)

        await asyncio.gather(*(work() for _ in range(min(self._workers, len(actions)))))
        if failures:
            raise failures[0]

    async def _change(self, api: ClusterApi, action: Create | Update | Delete) -> bool:
        """Apply one change; return false when its precondition failed."""
        try:
            precondition = None if isinstance(action, Create) else action.precondition
            if precondition is not None and not precondition(self._api.views, self._clock.now()):
                return False
            if isinstance(action, Create):
                stored = await api.create(action.plural, action.obj)
                if action.plural == EVENTS:
                    self._event_written(stored)
            elif isinstance(action, Update):
                await api.update(action.plural, action.obj, action.subresource, action.precondition)
            else:
                await api.delete(action)
            if not isinstance(action, Create) and action.announcement:
                is_routine = isinstance(action, Update) and action.is_routine
                log.log(logging.INFO if is_routine else logging.WARNING, "%s", action.announcement)
        except AlreadyExistsError:
            return not (isinstance(action, Create) and action.must_be_new)
        except NotFoundError:
            # The object or its namespace is gone. The event of that deletion plans the rest.
            return True
        except NamespaceHeldError:
            raise
        except ConflictError:
            # The change that broke the precondition of a deletion plans the key again. An update is planned again here, and a
            # deletion whose plan says what follows from it.
            return isinstance(action, Delete) and action.precondition is None
        except ForbiddenError as error:
            if any(cause.reason == "NamespaceTerminating" for cause in error.details.causes):
                return True
            raise
        return True


def _leading_deletes(pending: deque[Action]) -> Iterator[Delete]:
    """Remove and yield the deletes at the front of `pending`."""
    while pending and isinstance(pending[0], Delete):
        action = pending.popleft()
        assert isinstance(action, Delete)  # checked by the loop condition
        yield action


def _key_text(key: Key) -> str:
    return "/".join(part for part in key if part) or "everything"
