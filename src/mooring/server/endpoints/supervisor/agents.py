"""Serve what agents of k3s read before and after they join: CAs, configuration, addresses, readiness.

Rules kept here (docs/protocol/k3s.md#supervisor):
* The bytes of `/cacerts` are those of which tokens carry the hash.
* Nothing here is secret, and nothing changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from mooring.apimachinery.codec.json import encode_json
from mooring.apimachinery.schema import Obj
from mooring.errors import ServiceUnavailableError
from mooring.server.requestcontext import RequestContext
from mooring.server.response.render import content_type
from mooring.server.transport.http import JSON, Response

TEXT = content_type("text/plain")


async def ca_bundle(context: RequestContext, bundle: Callable[[], bytes]) -> Response:
    """Answer with a CA bundle as PEM."""
    return Response(200, bundle(), (TEXT,))


async def ping(context: RequestContext, nothing: None) -> Response:
    """Answer `pong`."""
    return Response(200, b"pong", (TEXT,))


async def agent_config(context: RequestContext, config: Callable[[], Obj]) -> Response:
    """Answer with the settings of the cluster that an agent or a joining server reads."""
    return Response(200, encode_json(config()) + b"\n", (JSON,))


async def apiservers(context: RequestContext, addresses: Callable[[], tuple[str, ...]]) -> Response:
    """Answer with `host:port` of each server."""
    return Response(200, json.dumps(addresses()).encode() + b"\n", (JSON,))


async def readiness(context: RequestContext, ready: Callable[[], bool]) -> Response:
    """Answer `ok`. Raises ServiceUnavailableError while this server is not ready."""
    if not ready():
        raise ServiceUnavailableError("runtime core not ready")
    return Response(200, b"ok", (TEXT,))
