"""Questions answered at once and never stored: who is this, may they do that, give me a token.

Each handler translates one POST into a call of a pure room and back; the table `REVIEWS` says which kind asks which. What
was posted is first defaulted and validated by its kind, as the registry does with what it stores. A token is asked of
admission too: NodeRestriction says which tokens a node may have, whatever RBAC grants
(docs/protocol/node-authorization.md#noderestriction).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

from mooring.api.authentication import tokenrequest
from mooring.api.authentication.tokenrequest import TOKEN_REQUEST
from mooring.api.kind import Change, Kind
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.codec.zerofields import complete
from mooring.apimachinery.options import parse_write_options
from mooring.apimachinery.schema import Obj
from mooring.authn.review import review_self, review_token
from mooring.authn.serviceaccount.tokenrequest import ISSUED_CREDENTIAL_ID, Issuance, issue
from mooring.authz import review as access
from mooring.errors import BadRequestError, FieldError, InvalidError, MethodNotAllowedError
from mooring.registry.admission.request import AdmissionRequest
from mooring.server.pipeline import Context, uuid4
from mooring.server.resources.handlers import read_object
from mooring.server.response.render import object_response
from mooring.server.services import Services
from mooring.server.transport.http import Response

ACCESS = "authorization.k8s.io"
Answer = Callable[[Context, Services, Obj], Awaitable[Obj]]


async def _token(context: Context, services: Services, review: Obj) -> Obj:
    reviewed = await services.second_stage.run(
        review_token(review, services.authenticators, services.registry.views, context.received, services.audiences)
    )
    if reviewed.outcome.refusals and reviewed.outcome.user is None:
        context.annotations["authentication.mooring.dev/reviewed"] = "; ".join(
            f"{refusal.authenticator}: {refusal.reason}" for refusal in reviewed.outcome.refusals
        )
    context.annotations.update(reviewed.outcome.annotations)
    context.warnings.extend(reviewed.outcome.warnings)
    return reviewed.review


async def _self(context: Context, services: Services, review: Obj) -> Obj:
    return review_self(review, context.user, context.received)


async def _subject_access(context: Context, services: Services, review: Obj) -> Obj:
    return access.with_status(review, services.authorize(access.subject_access_attributes(review)))


async def _self_subject_access(context: Context, services: Services, review: Obj) -> Obj:
    return access.with_status(review, services.authorize(access.self_access_attributes(review, context.user)))


async def _self_subject_rules(context: Context, services: Services, review: Obj) -> Obj:
    return access.rules_review(review, context.user, services.rbac, services.registry.views)


REVIEWS: Mapping[str, Answer] = MappingProxyType(
    {
        "tokenreviews": _token,
        "selfsubjectreviews": _self,
        "subjectaccessreviews": _subject_access,
        "localsubjectaccessreviews": _subject_access,
        "selfsubjectaccessreviews": _self_subject_access,
        "selfsubjectrulesreviews": _self_subject_rules,
    }
)
"""Virtual kinds by plural."""


def _prepare(context: Context, kind: Kind, obj: Obj) -> None:
    """Default and validate `obj`, in place. Raises BadRequestError, InvalidError."""
    if kind.resource.namespaced:
        namespace = context.info.namespace
        if obj.setdefault("metadata", {}).setdefault("namespace", namespace) != namespace:
            why = "the namespace of the provided object does not match the namespace sent on the request"
            raise BadRequestError(why)
    kind.default(obj)
    kind.prepare_for_create(obj, Change(context.user, context.received))
    # kube-apiserver names no kind in what it says about access reviews, and clients may compare
    _refuse(kind.resource.group, "" if kind.resource.group == ACCESS else kind.resource.kind, kind.validate(obj))


def _refuse(group: str, kind: str, errors: list[FieldError]) -> None:
    if errors:
        raise InvalidError.of(group, kind, "", errors)


async def review(context: Context, services: Services, kind: Kind) -> Response:
    """POST of a virtual kind: 201 with the answer."""
    resource = kind.resource
    if context.info.verb != "create" or context.info.name:
        raise MethodNotAllowedError()
    options = parse_write_options(context.request.query)
    obj = await read_object(
        context, services.registry.long_work, resource.schema, resource.kind, resource.api_version, options
    )
    size = len(await context.request.body())
    await services.registry.long_work.run(size, context.user.username, lambda: _prepare(context, kind, obj))
    answer = await REVIEWS[resource.plural](context, services, obj)
    complete(answer, resource.schema)
    return object_response(context.request, answer, resource.schema, 201)


async def service_account_token(context: Context, services: Services) -> Response:
    """POST /api/v1/namespaces/<ns>/serviceaccounts/<name>/token."""
    info = context.info
    if info.verb != "create":
        raise MethodNotAllowedError()
    options = parse_write_options(context.request.query)
    request = await read_object(
        context, services.registry.long_work, TOKEN_REQUEST, "TokenRequest", "authentication.k8s.io/v1", options
    )
    tokenrequest.default(request)
    _refuse("authentication.k8s.io", "TokenRequest", tokenrequest.validate(request))
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
