"""Watches of users that a client certificate authenticated: each ends once its certificate is no longer accepted.

Rules kept here:
* A change of a kind that the checks of certificates read (`mooring.authn.x509.checks`), the loss of an object that cannot be read
  any more, or a change of the CAs of clients has every running watch judged again. Other requests need nothing here: they are
  judged when they arrive.
* They are also judged every JUMP_SECONDS, so that a watch ends soon after its certificate, also when the clock was set. A
  kube-apiserver lets it go on until its own timeout.
* The first change after a pause is handled at once, and later ones at most every PAUSE_SECONDS. A watch that begins is judged
  once more, because its request may have waited since it was authenticated.
* Only the authenticator that accepted the request judges again. A rejection ends the watch, and so does an error while it is
  judged: one that stopped the pass would leave the watches of all others open. It ends cleanly; the next request gets 401.
* A pass gives way between slices, and most certificates cost it the comparison of a few revisions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any

from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring import ends
from mooring.apimachinery.options import ListOptions
from mooring.apimachinery.selectors import EVERY_FIELD, parse_field_selector
from mooring.authn.authenticator import CONNECTION, Authenticator
from mooring.authn.credentials import Credentials, PeerMemo
from mooring.authn.verdict import Rejected
from mooring.authn.x509.checks import READ_PLURALS
from mooring.clock import JUMP_SECONDS, Clock
from mooring.registry.cache.events import Event
from mooring.registry.store import Registry
from mooring.server.requestcontext import Context
from mooring.server.transport.responsewriter import ResponseWriter

log = logging.getLogger("mooring.server")

PAUSE_SECONDS = 0.5
"""Rest between two passes. A revocation is in force within a second, and kinds that change all the time cost little."""
_ENDS = parse_field_selector(f"metadata.name={ends.NAME}")
SLICE = 64
"""Watches judged at a time: 20 ms when every chain must be verified anew, under other CAs."""


class CertificateWatches:
    """Running watches of one server that depend on a client certificate. `run` judges them while the server serves."""

    def __init__(
        self, registry: Registry, authenticators: Sequence[Authenticator], changed: asyncio.Event, clock: Clock
    ) -> None:
        """`changed` is set after each change of the CAs of clients."""
        self._registry = registry
        self._judges = {one.name: one for one in authenticators if one.judges == CONNECTION}
        self._changed = changed
        self._begun = asyncio.Event()
        self._clock = clock
        self._running: dict[ResponseWriter, Context] = {}

    @contextmanager
    def judging(self, context: Context, writer: ResponseWriter) -> Iterator[None]:
        """Judge the watch that is sent in this block. `writer` is ended when its certificate is rejected."""
        if context.outcome.authenticator not in self._judges:
            yield
            return
        self._running[writer] = context
        self._begun.set()
        try:
            self._judge(context, writer)
            yield
        finally:
            del self._running[writer]

    async def run(self) -> None:
        """Judge the running watches after each change, until cancelled."""
        async with AsyncExitStack() as stack:
            for plural in READ_PLURALS:
                selector = _ENDS if plural == ends.CONFIG_MAPS else EVERY_FIELD
                options = ListOptions(watch=True, send_initial_events=False, field_selector=selector)
                watch = await self._registry.watch(BY_PLURAL[plural], "", options, self._note)
                stack.callback(watch.close)
                await watch.replay()
            stack.callback(self._registry.cache.on_loss(self._changed.set))
            while True:
                await self._next()
                self._changed.clear()
                await self._judge_all()
                await self._clock.sleep(PAUSE_SECONDS)

    def _note(self, event: Event) -> None:
        self._changed.set()

    async def _next(self) -> None:
        """Return after the next change, or after JUMP_SECONDS. No timer runs without a watch."""
        if not self._running:
            self._begun.clear()
            await _first_of(self._changed.wait(), self._begun.wait())
        if not self._changed.is_set():
            await _first_of(self._changed.wait(), self._clock.sleep(JUMP_SECONDS))

    async def _judge_all(self) -> None:
        for place, (writer, context) in enumerate(tuple(self._running.items()), 1):
            if writer in self._running:  # it may have ended in another task meanwhile
                self._judge(context, writer)
            if not place % SLICE:
                await asyncio.sleep(0)

    def _judge(self, context: Context, writer: ResponseWriter) -> None:
        connection = context.request.connection
        memo = connection.cache.get("peer") or PeerMemo()
        judge = self._judges[context.outcome.authenticator]
        try:
            verdict = judge.authenticate(
                Credentials(connection.chain, memo=memo), self._registry.views, self._clock.now(), ()
            )
        except Exception:  # what cannot be judged ends, and the watches of others are judged
            log.exception("%s: the watch cannot be judged, and ends", context.audit_id)
            writer.end()
            return
        if isinstance(verdict, Rejected):
            user = context.impersonator or context.user
            log.info(
                "%s: the watch of %s ends: %s: %s (%s)",
                context.audit_id,
                user.username,
                context.outcome.authenticator,
                verdict.reason,
                verdict.detail,
            )
            context.annotations["authentication.mooring.dev/ended"] = f"{verdict.reason} ({verdict.detail})"
            writer.end()


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait for the first to end, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
