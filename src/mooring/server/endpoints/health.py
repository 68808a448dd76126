"""Serve `/healthz`, `/livez` and `/readyz`, whole or one check, with `?verbose` and `?exclude=`.

Source: docs/protocol/health.md#health-checks.
"""

from __future__ import annotations

from mooring.server.healthchecks import HealthChecks
from mooring.server.requestcontext import RequestContext
from mooring.server.response.render import NOSNIFF, content_type
from mooring.server.transport.http import Response

_TEXT = content_type("text/plain; charset=utf-8")


async def health(context: RequestContext, checks: HealthChecks) -> Response:
    """Answer 200 `ok`, or 500 with the names of the failed checks."""
    _, endpoint, *rest = context.info.path.split("/", 2)
    if rest and rest[0]:
        result = checks.single(endpoint, rest[0])
        if result is None:
            return Response(404, b"404 page not found\n", (_TEXT, NOSNIFF))
        healthy, text = result
    else:
        query = context.request.query
        healthy, text = checks.report(endpoint, query.get("exclude", ()), "verbose" in query)
    return Response(200 if healthy else 500, text.encode(), (_TEXT, NOSNIFF))
