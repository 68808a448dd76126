"""The API that is served, and the replies of paths that nothing serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mooring.apimachinery.discovery import groups
from mooring.apimachinery.resource import Resource
from mooring.errors import NotFoundError
from mooring.server.requestcontext import RequestContext
from mooring.server.response.render import content_type
from mooring.server.transport.http import Response

# The served API, as discovery and OpenAPI documents describe it.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServedApi:
    """Resources and address of one server. Documents are cached for each instance."""

    resources: Sequence[Resource]
    server_address: str
    """`host:port` under which clients reach this server."""


# Answer 404 for paths that nothing serves: as a Status below API group roots, as plain text elsewhere.
#
# Source: docs/protocol/discovery.md#legacy-documents.


def missing(context: RequestContext, api: ServedApi) -> Response:
    """Return 404 as text, or raise NotFoundError below `/api`, `/version` and the roots of served API groups."""
    root, _, rest = context.info.path.removeprefix("/").partition("/")
    group = rest.partition("/")[0]
    if root in ("api", "version") or (root == "apis" and group and group in groups(api.resources)):
        raise NotFoundError("the server could not find the requested resource")
    return not_found()


def not_found() -> Response:
    """Return the reply of Go's ServeMux for an unknown path; client-go turns it into a NotFound error."""
    return Response(404, b"404 page not found\n", (content_type("text/plain; charset=utf-8"),))
