"""Serve GET `/v1-k3s/connect`: the websocket by which an agent of k3s offers itself as a way to its node.

Rules kept here (docs/protocol/k3s.md#tunnel, docs/adr/0051-the-supervisor-api.md):
* Only a node may connect, under its own name `system:node:<name>`.
* The session is kept with a ping every PING_SECONDS, as k3s's server does, so that the load balancer of the agent counts this
  server as healthy. Nothing is dialled through it: this server has no request that would go to a node.
* Messages of the agent are discarded within the limits of every WebSocket (`mooring.server.transport.responsewriter`). An agent
  that is silent for SILENCE_SECONDS has gone.
* The session ends when the certificate is no longer accepted, as a watch does, and when the server stops.
"""

from __future__ import annotations

import asyncio

from mooring.clock import Clock
from mooring.errors import BadRequestError, UnauthorizedError
from mooring.identity import NODE_PREFIX
from mooring.server.requestcontext import RequestContext
from mooring.server.resources.watches import accept_headers, handshake_error, is_websocket
from mooring.server.transport.http import Response
from mooring.server.transport.responsewriter import ResponseWriter, WebSocketWriter
from mooring.trust.k3s.identity import NO_NODE

PING_SECONDS = 5.0
"""Between two pings, as of k3s's server."""
SILENCE_SECONDS = 60.0
"""Time without a byte of the agent, which pings as often."""


class Tunnels:
    """Sessions of agents with this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: set[ResponseWriter] = set()
        self._draining = False

    def __len__(self) -> int:
        return len(self._running)

    def drain(self) -> None:
        """End all sessions, and those that begin later."""
        self._draining = True
        for out in tuple(self._running):
            out.end()

    async def keep(self, out: ResponseWriter) -> None:
        """Keep one session until it ends."""
        if self._draining:
            return
        self._running.add(out)
        pinging = asyncio.create_task(self._ping(out))
        try:
            await out.ended
        finally:
            self._running.discard(out)
            pinging.cancel()
            await asyncio.gather(pinging, return_exceptions=True)

    async def _ping(self, out: ResponseWriter) -> None:
        assert isinstance(out, WebSocketWriter)
        heard, silent = -1, 0.0
        while silent < SILENCE_SECONDS:
            out.ping()
            await self._clock.sleep(PING_SECONDS)
            silent = 0.0 if out.heard != heard else silent + PING_SECONDS
            heard = out.heard
        out.end()


async def connect(context: RequestContext, tunnels: Tunnels) -> Response:
    """Upgrade to a WebSocket and keep the session. Raises UnauthorizedError, BadRequestError."""
    if not context.user.username.startswith(NODE_PREFIX):
        context.rejected_reason = NO_NODE
        raise UnauthorizedError(message="failed authentication")
    request = context.request
    if not is_websocket(request):
        raise BadRequestError("this path takes a WebSocket handshake only")
    refusal = handshake_error(request, needs_origin=False)
    if refusal is not None:
        return refusal
    return Response(101, headers=accept_headers(request), stream=tunnels.keep, upgrade=WebSocketWriter)
