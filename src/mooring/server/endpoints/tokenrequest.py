"""Serve TokenRequest: POST to the subresource `token` of a ServiceAccount issues a token.

Admission decides besides RBAC: NodeRestriction limits the tokens that a node may request
(docs/protocol/node-authorization.md#noderestriction).
"""

from __future__ import annotations

from mooring.api.authentication import tokenrequest
from mooring.api.authentication.tokenrequest import TOKEN_REQUEST
from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.codec.zerofields import complete
from mooring.apimachinery.options import parse_write_options
from mooring.apimachinery.uid import uuid4
from mooring.authn.serviceaccount.tokenrequest import ISSUED_CREDENTIAL_ID, Issuance, issue
from mooring.errors import InvalidError, MethodNotAllowedError
from mooring.registry.admission.request import AdmissionRequest
from mooring.server.requestcontext import Context
from mooring.server.resources.handlers import read_object
from mooring.server.response.render import object_response
from mooring.server.services import Services
from mooring.server.transport.http import Response


async def service_account_token(context: Context, services: Services) -> Response:
    """Answer POST `/api/v1/namespaces/<ns>/serviceaccounts/<name>/token`. Raises ApiError."""
    info = context.info
    if info.verb != "create":
        raise MethodNotAllowedError()
    options = parse_write_options(context.request.query)
    request = await read_object(
        context, services.registry.long_work, TOKEN_REQUEST, "TokenRequest", "authentication.k8s.io/v1", options
    )
    tokenrequest.default(request)
    if errors := tokenrequest.validate(request):
        raise InvalidError.of("authentication.k8s.io", "TokenRequest", "", errors)
    services.registry.admit(
        AdmissionRequest(
            operation="CREATE",
            kind=BY_PLURAL["serviceaccounts"],
            subresource="token",
            namespace=info.namespace,
            name=info.name,
            new=request,
            old=None,
            change=Change(context.user, context.received),
            views=services.registry.views,
            authorize=services.authorize,
            dry_run=options.dry_run,
        )
    )
    issued = issue(
        request,
        info.namespace,
        info.name,
        services.registry.views,
        services.token_signer,
        Issuance(
            now=context.received,
            token_id=uuid4(services.entropy),
            audiences=tuple(services.audiences),
            max_seconds=services.max_token_seconds,
            extend=services.extend_tokens,
        ),
    )
    context.warnings.extend(issued.warnings)
    context.annotations[ISSUED_CREDENTIAL_ID] = issued.credential_id
    complete(issued.response, TOKEN_REQUEST)
    return object_response(context.request, issued.response, TOKEN_REQUEST, 201)
