"""Serve `/metrics` in the Prometheus text format."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from mooring.server.requestcontext import RequestContext
from mooring.server.response.render import content_type
from mooring.server.transport.http import Response


async def metrics(context: RequestContext, text: Callable[[], Awaitable[bytes]]) -> Response:
    """Answer with every metric of this server: of all workers of the host."""
    return Response(200, await text(), (content_type("text/plain; version=0.0.4; charset=utf-8"),))
