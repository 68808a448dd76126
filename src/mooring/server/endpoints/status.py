"""Serve GET `/mooring/v1/status`: what one server knows of itself, for `mooring status` and `mooring certs check`.

Rules kept here:
* RBAC decides which users may read it (ClusterRole `mooring:status`, which no default binding grants; cluster-admin includes it).
  It shows names of files and ends of certificates, and no key.
* Files are read in a thread, and one report is made at a time in a process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from mooring.apimachinery.codec.json import encode_json
from mooring.apimachinery.schema import Obj
from mooring.server.endpoints.login import API_VERSION
from mooring.server.requestcontext import RequestContext
from mooring.server.response.render import content_type
from mooring.server.transport.http import Response


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StatusReport:
    """Parts from which the report is made."""

    read: Callable[[], Obj]
    """Returns the report. Reads files."""
    making: asyncio.Lock = field(default_factory=asyncio.Lock)


async def status(context: RequestContext, report: StatusReport) -> Response:
    """Answer with the report of this server."""
    async with report.making:
        found = await asyncio.to_thread(report.read)
    body = encode_json({"kind": "ServerStatus", "apiVersion": API_VERSION, **found})
    return Response(200, body, (content_type("application/json"),))
