"""Running watches and upgraded connections: each ends once its credential, or its right, is no longer accepted.

Rules kept here:
* A change that may end a credential or a right has every running watch judged again: the kinds that the checks of certificates
  read (`mooring.authn.x509`), bindings and roles, tokens and what they are bound to, the loss of an object that cannot be
  read any more, a followed file, or the CAs of clients. Other requests need nothing here: they are judged when they arrive.
* They are also judged every JUMP_SECONDS, so that a watch ends soon after its certificate or token, also when the clock was set. A
  kube-apiserver lets it go on until its own timeout.
* The first change after a pause is handled at once, and later ones at most every PAUSE_SECONDS. A watch that begins is judged
  once more, because its request may have waited since it was authenticated.
* The whole chain judges, then the authorizers, as for a new request (`mooring.server.pipeline`). A watch ends cleanly; the next
  request of the client gets 401 or 403. A verdict from outside is not asked for again: nothing here waits.
* An error while a watch is judged closes it, too.
* A pass gives way between slices. Most watches cost it the comparison of a few revisions and some lookups.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from mooring.api.mooring import tombstones
from mooring.authn.x509 import READ_PLURALS
from mooring.clock import JUMP_SECONDS, Clock
from mooring.registry.cache.events import Transition
from mooring.registry.store import Registry
from mooring.server.requestcontext import RequestContext
from mooring.server.transport.responsewriter import ResponseWriter

log = logging.getLogger("mooring.server")

PAUSE_SECONDS = 0.5
"""Rest between two passes. A revocation is in force within a second, and kinds that change all the time cost little."""
SLICE = 64
"""Watches judged at a time: 20 ms when every chain must be verified again, under other CAs."""
_RIGHTS = ("clusterrolebindings", "clusterroles", "rolebindings", "roles")
_TOKENS = ("secrets", "serviceaccounts")
_BUSY = ("nodes", "pods")
"""Kinds that change all the time, and end a credential or a right only by their deletion."""
_ENDING = frozenset({*READ_PLURALS, *_RIGHTS, *_TOKENS, *_BUSY})
_DELETION = b'"deletionTimestamp"'

Judge = Callable[[], str]
"""Returns why a watch ends now; "" while it goes on. It never waits."""


class OpenWatches:
    """Running watches of one server. `run` judges them while the server serves."""

    def __init__(self, registry: Registry, changed: asyncio.Event, clock: Clock) -> None:
        """`changed` is set after each change of the CAs of clients, and of the files that authenticators follow."""
        self._registry = registry
        self._changed = changed
        self._begun = asyncio.Event()
        self._clock = clock
        self._running: dict[ResponseWriter, tuple[RequestContext, Judge]] = {}

    @contextmanager
    def judging(self, context: RequestContext, writer: ResponseWriter, judge: Judge) -> Iterator[None]:
        """Judge the watch that is sent in this block. `writer` is ended once `judge` says why."""
        if not self._running:
            # Earlier changes are of no concern to a watch that begins now.
            self._changed.clear()
        self._running[writer] = context, judge
        self._begun.set()
        try:
            # The request may have waited since it was authenticated, and no pass judged this watch in that time.
            _judge(context, writer, judge)
            yield
        finally:
            del self._running[writer]

    async def run(self) -> None:
        """Judge the running watches after each change, until cancelled."""
        with ExitStack() as stack:
            stack.callback(self._registry.cache.on_change(self._note))
            stack.callback(self._registry.cache.on_loss(self._changed.set))
            while True:
                await self._next()
                # Before the pass and not after it: a change during the pass causes another one.
                self._changed.clear()
                await self._judge_all()
                # Kinds that change all the time cause a pass at most every PAUSE_SECONDS.
                await self._clock.sleep(PAUSE_SECONDS)

    def _note(self, change: Transition) -> None:
        if self._running and _may_end(change):
            self._changed.set()

    async def _next(self) -> None:
        """Return after the next change, or after JUMP_SECONDS. No timer runs without a watch."""
        if not self._running:
            self._begun.clear()
            await self._begun.wait()
        if not self._changed.is_set():
            await _first_of(self._changed.wait(), self._clock.sleep(JUMP_SECONDS))

    async def _judge_all(self) -> None:
        for place, (writer, (context, judge)) in enumerate(tuple(self._running.items()), 1):
            # The watch may have been closed by another task meanwhile.
            if writer in self._running:
                _judge(context, writer, judge)
            if not place % SLICE:
                await asyncio.sleep(0)


def _may_end(change: Transition) -> bool:
    """Return whether a change may end a credential or a right."""
    plural = change.kind.resource.plural
    if plural not in _ENDING:
        return False
    if plural == tombstones.CONFIG_MAPS:
        return change.name == tombstones.NAME
    if change.current is None:
        return True
    if plural in _BUSY:
        return _DELETION in change.current.raw
    return plural not in _TOKENS or change.previous is not None


def _judge(context: RequestContext, writer: ResponseWriter, judge: Judge) -> None:
    try:
        reason = judge()
    except Exception:
        # An error must neither keep this watch open nor stop the pass over the others.
        log.exception("%s: the watch cannot be judged, and ends", context.audit_id)
        writer.end()
        return
    if reason:
        user = context.impersonator or context.user
        log.info("%s: the watch of %s ends: %s", context.audit_id, user.username, reason)
        context.annotations["authentication.mooring.dev/ended"] = reason
        writer.end()


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait for the first to end, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
