"""Table of endpoints: every served path that is not a resource, and the parts that their handlers get."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mooring.apimachinery.codec.json import encode_json, indent_json
from mooring.apimachinery.discovery import group_paths
from mooring.pki.x509.crl import SignedList
from mooring.server.endpoints.debugauthentication import Explanations, explain, refusals
from mooring.server.endpoints.discovery import (
    TokenIssuer,
    api,
    jwks,
    openapi_v2,
    openapi_v3,
    openid_configuration,
    version,
)
from mooring.server.endpoints.leave import LeaveHandler, leave
from mooring.server.endpoints.reviews import Reviewers
from mooring.server.endpoints.servedapi import ServedApi
from mooring.server.endpoints.state import (
    EncryptionReport,
    StatusReport,
    encryption_at_rest,
    health,
    metrics,
    revocation_list,
    status,
)
from mooring.server.endpoints.tokens import LoginParts, TokenRequests, login
from mooring.server.healthchecks import HealthChecks
from mooring.server.requestcontext import RequestContext
from mooring.server.transport.http import Response

# Parts that handlers of endpoints use, one field for each group of endpoints. The control plane builds them once.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Services:
    """Parts of one server process. A handler gets one field, and not the whole."""

    api: ServedApi
    health: HealthChecks
    metrics: Callable[[], Awaitable[bytes]]
    """Returns the metrics in the Prometheus text format."""
    reviewers: Reviewers
    token_requests: TokenRequests
    issuer: TokenIssuer
    logins: LoginParts
    leave_handler: LeaveHandler
    explanations: Explanations
    encryption: EncryptionReport
    revocation_list: Callable[[], SignedList | None]
    """Returns the newest CRL."""
    status: StatusReport


# Table of endpoints: every served path that is not a resource.
#
# The first matching row serves the request. `tests/test_tables.py` proves that each row is reachable.

N = TypeVar("N")


@dataclass(frozen=True, slots=True)
class ServedPath(Generic[N]):
    """One path; with `below` also every path under it.

    With `slashes` trailing slashes are ignored, as for the paths that kube-apiserver serves through its API containers. Other paths
    match exactly, and RBAC rules name them so.
    """

    path: str
    serve: Callable[[RequestContext, N], Awaitable[Response]]
    needs: Callable[[Services], N]
    """Returns the parts that `serve` gets."""
    below: bool = False
    slashes: bool = False
    methods: tuple[str, ...] = ("GET", "HEAD")


async def index(context: RequestContext, served: ServedApi) -> Response:
    """Answer `/` with every readable path, the document that `kubectl get --raw /` shows."""
    paths = {endpoint.path for endpoint in ENDPOINTS if endpoint.path != "/" and "GET" in endpoint.methods}
    return Response(200, indent_json(encode_json({"paths": sorted({*paths, *group_paths(served.resources)})})))


ENDPOINTS: tuple[ServedPath[Any], ...] = (
    ServedPath("/", index, lambda services: services.api),
    ServedPath("/healthz", health, lambda services: services.health, below=True),
    ServedPath("/livez", health, lambda services: services.health, below=True),
    ServedPath("/readyz", health, lambda services: services.health, below=True),
    ServedPath("/version", version, lambda services: None, slashes=True),
    ServedPath("/api", api, lambda services: services.api, below=True, slashes=True),
    ServedPath("/apis", api, lambda services: services.api, below=True, slashes=True),
    ServedPath("/openapi/v2", openapi_v2, lambda services: services.api),
    ServedPath("/openapi/v3", openapi_v3, lambda services: services.api, below=True),
    ServedPath("/metrics", metrics, lambda services: services.metrics),
    ServedPath(
        "/.well-known/openid-configuration", openid_configuration, lambda services: services.issuer, slashes=True
    ),
    ServedPath("/openid/v1/jwks", jwks, lambda services: services.issuer, slashes=True),
    ServedPath("/debug/authentication/refusals", refusals, lambda services: services.explanations, below=True),
    ServedPath("/debug/authentication/explain", explain, lambda services: services.explanations, methods=("POST",)),
    ServedPath("/mooring/v1/login", login, lambda services: services.logins, methods=("POST",)),
    ServedPath("/mooring/v1/leave", leave, lambda services: services.leave_handler, methods=("POST",)),
    ServedPath("/mooring/v1/encryption", encryption_at_rest, lambda services: services.encryption),
    ServedPath("/mooring/v1/status", status, lambda services: services.status),
    ServedPath("/mooring/v1/crl", revocation_list, lambda services: services.revocation_list),
)


def find(path: str) -> ServedPath[Any] | None:
    """Return the endpoint that serves `path`, or None."""
    for endpoint in ENDPOINTS:
        if path == endpoint.path or (endpoint.slashes and path.rstrip("/") == endpoint.path):
            return endpoint
        if endpoint.below and path.startswith(endpoint.path + "/") and (endpoint.slashes or not path.endswith("/")):
            return endpoint
    return None
