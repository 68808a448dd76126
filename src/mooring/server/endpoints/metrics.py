"""Serve `/metrics` in the Prometheus text format."""

from __future__ import annotations

from mooring.server.metrics import Metrics
from mooring.server.requestcontext import Context
from mooring.server.response.render import content_type
from mooring.server.transport.http import Response


async def metrics(context: Context, process_metrics: Metrics) -> Response:
    """Answer with every metric of this process."""
    return Response(200, process_metrics.text(), (content_type("text/plain; version=0.0.4; charset=utf-8"),))
