"""Watches of users that a client certificate authenticated: each ends once its certificate is no longer accepted.

Rules kept here:
* A change of a kind that the checks of certificates read (`mooring.authn.x509.checks`), or of the CAs of clients, has every
  running watch judged again. Other requests need nothing here: they are judged when they arrive.
* The first change after a pause is handled at once, and later ones at most every PAUSE_SECONDS. A watch that begins is judged
  once more, because its request may have waited since it was authenticated.
* Only the authenticator that accepted the request judges again, and only a rejection ends the watch. It ends cleanly; the next
  request of the client gets 401.
* A pass gives way between slices, and most certificates cost it the comparison of a few revisions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager

from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.options import ListOptions
from mooring.authn.authenticator import CONNECTION, Authenticator
from mooring.authn.credentials import Credentials, PeerMemo
from mooring.authn.verdict import Rejected
from mooring.authn.x509.checks import READ_PLURALS
from mooring.clock import Clock
from mooring.registry.cache.events import Event
from mooring.registry.store import Registry
from mooring.server.requestcontext import Context
from mooring.server.transport.responsewriter import ResponseWriter

log = logging.getLogger("mooring.server")

PAUSE_SECONDS = 0.5
"""Rest between two passes. A revocation is in force within a second, and kinds that change all the time cost little."""
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
        self._clock = clock
        self._running: dict[ResponseWriter, Context] = {}

    @contextmanager
    def judging(self, context: Context, writer: ResponseWriter) -> Iterator[None]:
        """Judge the watch that is sent in this block. `writer` is ended when its certificate is rejected."""
        if context.outcome.authenticator not in self._judges:
            yield
            return
        self._running[writer] = context
        try:
            self._judge(context, writer)
            yield
        finally:
            del self._running[writer]

    async def run(self) -> None:
        """Judge the running watches after each change, until cancelled."""
        async with AsyncExitStack() as stack:
            for plural in READ_PLURALS:
                options = ListOptions(watch=True, send_initial_events=False)
                watch = await self._registry.watch(BY_PLURAL[plural], "", options, self._note)
                stack.callback(watch.close)
                await watch.replay()
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._judge_all()
                await self._clock.sleep(PAUSE_SECONDS)

    def _note(self, event: Event) -> None:
        self._changed.set()

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
        verdict = judge.authenticate(
            Credentials(connection.chain, memo=memo), self._registry.views, self._clock.now(), ()
        )
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
