"""Dispatch a request to the handler of a stored kind, a review, a token request or an endpoint, or answer 404.

Rules kept here (docs/protocol/discovery.md#legacy-documents):
* Dispatch follows authorization, so that a client without rights does not learn which objects exist.
* An unknown resource below an API group is a 404 with a Status. Any other unknown path is the plain `404 page not found` that
  client-go expects.
* A namespace in the path of a cluster-scoped kind makes an unknown path: the authorizers decided on that namespace, where a Role
  may allow everything.
* A path of a resource that is not canonical (`//api/v1/…`, `/apis//v1/…`) is unknown, too.
"""

from __future__ import annotations

from mooring.api.kind import Kind
from mooring.api.kinds import by_resource
from mooring.apimachinery.names import path_segment_errors
from mooring.apimachinery.requestinfo import RequestInfo
from mooring.errors import BadRequestError, MethodNotAllowedError, NotFoundError
from mooring.server.endpoints.reviews import review
from mooring.server.endpoints.routes import Services, find
from mooring.server.endpoints.servedapi import missing, not_found
from mooring.server.endpoints.tokens import service_account_token
from mooring.server.requestcontext import RequestContext
from mooring.server.resources.handlers import POD_CONNECTIONS, Resources
from mooring.server.transport.http import Response

MAX_PARTS = 3
"""Parts of `<resource>/<name>/<subresource>`: nothing is served below a subresource."""


class Router:
    """Router of authorized requests, called by the pipeline."""

    def __init__(self, services: Services, resources: Resources) -> None:
        self._services = services
        self._resources = resources

    async def __call__(self, context: RequestContext) -> Response:
        info = context.info
        if not info.is_resource:
            endpoint = find(info.path)
            if endpoint is None:
                return missing(context, self._services.api)
            context.routed = True
            if context.request.method not in endpoint.methods:
                raise MethodNotAllowedError()
            return await endpoint.serve(context, endpoint.needs(self._services))
        kind = by_resource(info.group, info.version, info.resource)
        if not info.canonical:
            return not_found()
        if kind is None or len(info.parts) > MAX_PARTS or info.verb == "proxy" or not _has_right_scope(kind, info):
            return missing(context, self._services.api)
        context.routed = not info.subresource or _subresource_exists(kind, info.subresource)
        if kind.virtual:
            return await review(context, self._services.reviewers, kind)
        if info.subresource:
            if info.resource == "serviceaccounts" and info.subresource == "token":
                return await service_account_token(context, self._services.token_requests)
            if kind.resource.kind == "Pod" and info.subresource in POD_CONNECTIONS:
                return await self._resources.connect(context, kind)
            if not context.routed:
                raise NotFoundError("the server could not find the requested resource")
        if info.name and (errors := path_segment_errors(info.name)):
            raise BadRequestError(f'Name parameter invalid: "{info.name}": {"; ".join(errors)}')
        return await self._resources.handle(context, kind)


def _has_right_scope(kind: Kind, info: RequestInfo) -> bool:
    """Return whether kube-apiserver has such a path: an object of a kind with namespaces lies in one, others do not, and reviews
    have no names. A list or a watch has the name of its field selector, in whatever namespaces.
    `/namespaces/<name>` is about that Namespace *in* itself (docs/protocol/requests.md#attributes)."""
    if info.name and kind.virtual:
        return info.verb == "watch"
    if info.name and kind.resource.namespaced and not info.namespace:
        return info.verb in ("list", "watch")
    if kind.resource.namespaced or not info.namespace:
        return True
    return info.resource == "namespaces" and info.namespace == info.name


def _subresource_exists(kind: Kind, name: str) -> bool:
    return any(subresource.name == name for subresource in kind.resource.subresources)
