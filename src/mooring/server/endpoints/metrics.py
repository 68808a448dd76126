"""Serve `/metrics` in the Prometheus text format."""

from __future__ import annotations

from mooring.server.requestcontext import Context
from mooring.server.response.render import content_type
from mooring.server.services import Services
from mooring.server.transport.http import Response


async def metrics(context: Context, services: Services) -> Response:
    """Answer with every metric of this process."""
    return Response(200, services.metrics.text(), (content_type("text/plain; version=0.0.4; charset=utf-8"),))
