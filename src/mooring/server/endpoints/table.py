"""Table of endpoints: every served path that is not a resource.

The first matching row serves the request. `tests/test_tables.py` proves that each row is reachable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mooring.apimachinery.codec.json import encode_json, indent_json
from mooring.apimachinery.discovery.documents import group_paths
from mooring.server.endpoints.debugauthentication import explain, refusals
from mooring.server.endpoints.discovery import api
from mooring.server.endpoints.health import health
from mooring.server.endpoints.issuerdiscovery import jwks, openid_configuration
from mooring.server.endpoints.login import login
from mooring.server.endpoints.metrics import metrics
from mooring.server.endpoints.openapi import openapi_v2, openapi_v3
from mooring.server.endpoints.version import version
from mooring.server.requestcontext import Context
from mooring.server.services import Services
from mooring.server.transport.http import Response

Serve = Callable[[Context, Services], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path; with `below` also every path under it.

    With `slashes` trailing slashes are ignored, as for the paths that kube-apiserver serves through its API containers. Other paths
    match exactly, and RBAC rules name them so.
    """

    path: str
    serve: Serve
    below: bool = False
    slashes: bool = False
    methods: tuple[str, ...] = ("GET", "HEAD")


async def index(context: Context, services: Services) -> Response:
    """Answer `/` with every readable path, the document that `kubectl get --raw /` shows."""
    paths = {endpoint.path for endpoint in ENDPOINTS if endpoint.serve is not index and "GET" in endpoint.methods}
    return Response(200, indent_json(encode_json({"paths": sorted({*paths, *group_paths(services.resources)})})))


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("/", index),
    Endpoint("/healthz", health, below=True),
    Endpoint("/livez", health, below=True),
    Endpoint("/readyz", health, below=True),
    Endpoint("/version", version, slashes=True),
    Endpoint("/api", api, below=True, slashes=True),
    Endpoint("/apis", api, below=True, slashes=True),
    Endpoint("/openapi/v2", openapi_v2),
    Endpoint("/openapi/v3", openapi_v3, below=True),
    Endpoint("/metrics", metrics),
    Endpoint("/.well-known/openid-configuration", openid_configuration, slashes=True),
    Endpoint("/openid/v1/jwks", jwks, slashes=True),
    Endpoint("/debug/authentication/refusals", refusals, below=True),
    Endpoint("/debug/authentication/explain", explain, methods=("POST",)),
    Endpoint("/mooring/v1/login", login, methods=("POST",)),
)


def find(path: str) -> Endpoint | None:
    """Return the endpoint that serves `path`, or None."""
    for endpoint in ENDPOINTS:
        if path == endpoint.path or (endpoint.slashes and path.rstrip("/") == endpoint.path):
            return endpoint
        if endpoint.below and path.startswith(endpoint.path + "/") and (endpoint.slashes or not path.endswith("/")):
            return endpoint
    return None
