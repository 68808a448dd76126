"""Every path that is not a resource, as an explicit table (law 10). First match wins; `tests/test_tables.py` proves
that each row is reachable."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mooring.apimachinery.codec.json import encode_json, indent_json
from mooring.apimachinery.discovery.documents import group_paths
from mooring.server.endpoints.authentication import explain, refusals
from mooring.server.endpoints.documents import api, openapi_v2, openapi_v3, version
from mooring.server.endpoints.health import health
from mooring.server.endpoints.login import login
from mooring.server.endpoints.metrics import metrics
from mooring.server.endpoints.oidc import jwks, openid_configuration
from mooring.server.pipeline import Context
from mooring.server.services import Services
from mooring.server.transport.http import Response

Serve = Callable[[Context, Services], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path, and with `below` everything under it.

    With `slashes` trailing slashes do not count, as for the paths that kube-apiserver serves through its API containers. Its other
    paths are exact, and RBAC rules name them so.
    """

    path: str
    serve: Serve
    below: bool = False
    slashes: bool = False
    methods: tuple[str, ...] = ("GET", "HEAD")


async def index(context: Context, services: Services) -> Response:
    """`/`: every path that can be read, as kube-apiserver tells it to `kubectl get --raw /`."""
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
    """The endpoint that serves `path`."""
    for endpoint in ENDPOINTS:
        if path == endpoint.path or (endpoint.slashes and path.rstrip("/") == endpoint.path):
            return endpoint
        if endpoint.below and path.startswith(endpoint.path + "/") and (endpoint.slashes or not path.endswith("/")):
            return endpoint
    return None
