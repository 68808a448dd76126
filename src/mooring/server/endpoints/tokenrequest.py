"""Serve TokenRequest: POST to the subresource `token` of a ServiceAccount issues a token.

Admission decides besides RBAC: NodeRestriction limits the tokens that a node may request
(docs/protocol/node-authorization.md#noderestriction).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mooring.api.authentication import tokenrequest
from mooring.api.authentication.tokenrequest import TOKEN_REQUEST
from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.codec.zerofields import complete
from mooring.apimachinery.options import parse_write_options
from mooring.apimachinery.uid import uuid4
from mooring.authn.serviceaccount import ISSUED_CREDENTIAL_ID, TokenIssuance, issue
from mooring.authz.decision import Authorize
from mooring.errors import InvalidError, MethodNotAllowedError
from mooring.pki.jwt.token import TokenKeys
from mooring.registry.admission.request import AdmissionRequest
from mooring.registry.store import Registry
from mooring.server.endpoints.unsettled import refuse_unsettled
from mooring.server.requestcontext import RequestContext
from mooring.server.resources.handlers import read_object
from mooring.server.response.render import object_response
from mooring.server.transport.http import Response


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenRequests:
    """Parts that issue tokens of ServiceAccounts."""

    registry: Registry
    authorize: Authorize
    entropy: Callable[[int], bytes]
    keys: TokenKeys
    audiences: Sequence[str]
    """Audiences of this API server: those of a token whose request names none."""
    max_seconds: int
    """Longest life of a token; 0: no limit."""
    extend: bool
    """Issue the token that every Pod gets for a year instead of an hour."""


async def service_account_token(context: RequestContext, issuing: TokenRequests) -> Response:
    """Answer POST `/api/v1/namespaces/<ns>/serviceaccounts/<name>/token`. Raises ApiError."""
    info = context.info
    if info.verb != "create":
        raise MethodNotAllowedError()
    refuse_unsettled(issuing.registry.views)
    options = parse_write_options(context.request.query)
    request = await read_object(
        context, issuing.registry.long_work, TOKEN_REQUEST, "TokenRequest", "authentication.k8s.io/v1", options
    )
    tokenrequest.default(request)
    if errors := tokenrequest.validate(request):
        raise InvalidError.of("authentication.k8s.io", "TokenRequest", "", errors)
    await context.confirm()  # no `await` from here on: admission, binding and signature see the same views
    refuse_unsettled(issuing.registry.views)
    issuing.registry.writer.admit(
        AdmissionRequest(
            operation="CREATE",
            kind=BY_PLURAL["serviceaccounts"],
            subresource="token",
            namespace=info.namespace,
            name=info.name,
            new=request,
            old=None,
            change=Change(context.user, context.received),
            views=issuing.registry.views,
            authorize=issuing.authorize,
            dry_run=options.dry_run,
        )
    )
    issued = issue(
        request,
        info.namespace,
        info.name,
        issuing.registry.views,
        issuing.keys.signer,
        TokenIssuance(
            now=context.received,
            token_id=uuid4(issuing.entropy),
            audiences=tuple(issuing.audiences),
            max_seconds=issuing.max_seconds,
            extend=issuing.extend,
        ),
    )
    context.warnings.extend(issued.warnings)
    context.annotations[ISSUED_CREDENTIAL_ID] = issued.credential_id
    complete(issued.response, TOKEN_REQUEST)
    return object_response(context.request, issued.response, TOKEN_REQUEST, 201)
