"""From request info to whoever answers: a stored kind, a review, a token request, an endpoint, or nobody.

Rules kept here: it runs after authorization, so that a caller who may do nothing learns nothing about what exists; an unknown
resource or path is the plain `404 page not found` that client-go expects (reference/kubernetes.md 7.1).
"""

from __future__ import annotations

from mooring.errors import MethodNotAllowedError, NotFoundError
from mooring.kinds import by_resource
from mooring.server.endpoints import find
from mooring.server.endpoints.documents import not_found
from mooring.server.endpoints.reviews import review, service_account_token
from mooring.server.http import Response
from mooring.server.pipeline import Context
from mooring.server.resources import Resources
from mooring.server.services import Services


class Router:
    """The last step of the pipeline."""

    def __init__(self, services: Services, resources: Resources) -> None:
        self._services = services
        self._resources = resources

    async def __call__(self, context: Context) -> Response:
        info = context.info
        if not info.is_resource:
            endpoint = find(info.path)
            if endpoint is None:
                return not_found()
            if context.request.method not in ("GET", "HEAD"):
                raise MethodNotAllowedError("the server does not allow this method on the requested resource")
            return await endpoint.serve(context, self._services)
        kind = by_resource(info.group, info.version, info.resource)
        if kind is None:
            return not_found()
        if kind.virtual:
            return await review(context, self._services, kind)
        if info.subresource:
            if info.resource == "serviceaccounts" and info.subresource == "token":
                return await service_account_token(context, self._services)
            if all(sub.name != info.subresource for sub in kind.resource.subresources):
                raise NotFoundError("the server could not find the requested resource")
        return await self._resources.handle(context, kind)
