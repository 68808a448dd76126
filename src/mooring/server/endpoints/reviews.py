"""Serve reviews: kinds that are answered at once and never stored, such as TokenReview, SubjectAccessReview and JoinToken.

Rules kept here:
* The posted object is defaulted and validated by its kind, as the registry does with objects that it stores.
* What is about a large body is computed beside the event loop, the reply too. Rights are judged on the loop.
* The table `REVIEWS` names the function that answers each kind. It calls a pure room.
* What a review says of a credential or a right is judged by views that are young (docs/adr/0079), also after a wait for a thread.
* A token about which nothing can be said now is 503, as for a request with it: a webhook would remember that it is invalid.
* For a JoinToken the server creates the Secret of a bootstrap token: the caller needs no right to Secrets, and gets none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from mooring.api.kind import Change, Kind
from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring import jointoken
from mooring.api.paths import GROUP
from mooring.apimachinery.codec.json import work_size
from mooring.apimachinery.codec.zerofields import complete
from mooring.apimachinery.options import parse_write_options
from mooring.apimachinery.schema import Obj
from mooring.authn.credentials import Authenticator
from mooring.authn.review import review_self, review_token
from mooring.authz import review as access
from mooring.authz.decision import Attributes
from mooring.authz.rbac.authorizer import Rbac
from mooring.errors import (
    AlreadyExistsError,
    BadRequestError,
    Details,
    ForbiddenError,
    InvalidError,
    MethodNotAllowedError,
    ServiceUnavailableError,
)
from mooring.identity import API_SERVER_USER
from mooring.registry.store import Registry
from mooring.server.authentication.deferred import DeferredAuthentication
from mooring.server.authentication.recheck import UNDECIDED_SECONDS
from mooring.server.requestcontext import RequestContext
from mooring.server.resources.handlers import read_object
from mooring.server.response.render import object_response
from mooring.server.transport.http import Response
from mooring.trust.bootstraptoken.token import generate_token
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE

ACCESS = "authorization.k8s.io"
UNDECIDED_TOKEN = "the server cannot decide about this token now; please try again later"  # noqa: S105 - a message, not a token


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reviewers:
    """Parts that answer reviews."""

    registry: Registry
    rbac: Rbac
    authenticators: Sequence[Authenticator]
    deferred_authentication: DeferredAuthentication
    audiences: Sequence[str]
    entropy: Callable[[int], bytes]


T = TypeVar("T")
Answer = Callable[[RequestContext, Reviewers, Obj], Awaitable[Obj]]


async def _review_token(context: RequestContext, reviewers: Reviewers, review: Obj) -> Obj:
    await context.prepare()
    now = (
        reviewers.deferred_authentication.now()
    )  # the body, and with it the token, may have come long after the headers
    reviewed = await reviewers.deferred_authentication.settle(
        review_token(review, reviewers.authenticators, reviewers.registry.views, now, reviewers.audiences)
    )
    if reviewed.outcome.refusals and reviewed.outcome.user is None:
        context.annotations["authentication.mooring.dev/reviewed"] = "; ".join(
            f"{refusal.authenticator}: {refusal.reason}" for refusal in reviewed.outcome.refusals
        )
    if reviewed.outcome.is_undecided:
        raise ServiceUnavailableError(UNDECIDED_TOKEN, Details(retry_after=UNDECIDED_SECONDS))
    context.annotations.update(reviewed.outcome.annotations)
    context.warnings.extend(reviewed.outcome.warnings)
    return reviewed.review


async def _review_self(context: RequestContext, reviewers: Reviewers, review: Obj) -> Obj:
    return review_self(review, context.user, context.received)


async def _review_subject_access(context: RequestContext, reviewers: Reviewers, review: Obj) -> Obj:
    return await _review_access(context, reviewers, review, access.subject_access_attributes)


async def _review_self_access(context: RequestContext, reviewers: Reviewers, review: Obj) -> Obj:
    return await _review_access(
        context, reviewers, review, lambda own: access.self_access_attributes(own, context.user)
    )


async def _review_access(
    context: RequestContext, reviewers: Reviewers, review: Obj, attributes_of: Callable[[Obj], Attributes]
) -> Obj:
    """Answer an access review. Its selectors may have tens of thousands of requirements, which are parsed in a thread."""

    def read() -> tuple[Attributes, tuple[str, ...]]:
        return attributes_of(review), tuple(access.ignored_selectors(review))

    attributes, ignored = await _run(context, reviewers, read)
    await context.prepare()
    return access.with_status(review, reviewers.registry.authorize(attributes), ignored)


async def _review_self_rules(context: RequestContext, reviewers: Reviewers, review: Obj) -> Obj:
    await context.prepare()
    return access.rules_review(review, context.user, reviewers.rbac, reviewers.registry.views)


async def _create_join_token(context: RequestContext, reviewers: Reviewers, request: Obj) -> Obj:
    registry, options = reviewers.registry, parse_write_options(context.request.query)
    token = generate_token(reviewers.entropy)
    secret = jointoken.secret_of(request, token, context.received, context.user)
    await context.confirm()
    if jointoken.live(registry.views["secrets"].list(NAMESPACE), context.received) >= jointoken.MOST_LIVE:
        raise ForbiddenError.of(
            GROUP,
            jointoken.PLURAL,
            "",
            f"there are {jointoken.MOST_LIVE} such tokens; wait until some expire, or delete some (mooring token delete)",
        )
    change = Change(API_SERVER_USER, context.received, gate=context.recheck, writer="join-tokens")
    try:
        await registry.writer.create(BY_PLURAL["secrets"], NAMESPACE, secret, change, options)
    except AlreadyExistsError:
        raise ServiceUnavailableError(
            "the id of the token is taken; please try again", Details(retry_after=1)
        ) from None
    context.warnings.extend(change.warnings)
    context.created = secret["metadata"]["name"]
    return jointoken.answer_of(request, secret, None if options.dry_run else token)


REVIEWS: Mapping[str, Answer] = MappingProxyType(
    {
        "tokenreviews": _review_token,
        "selfsubjectreviews": _review_self,
        "subjectaccessreviews": _review_subject_access,
        "localsubjectaccessreviews": _review_subject_access,
        "selfsubjectaccessreviews": _review_self_access,
        "selfsubjectrulesreviews": _review_self_rules,
        jointoken.PLURAL: _create_join_token,
    }
)
"""Functions that answer virtual kinds, by plural."""


def _prepare(context: RequestContext, kind: Kind, obj: Obj) -> None:
    """Default `obj` in place, and validate it. Raises BadRequestError, InvalidError."""
    if kind.resource.namespaced:
        namespace = context.info.namespace
        if obj.setdefault("metadata", {}).setdefault("namespace", namespace) != namespace:
            reason = "the namespace of the provided object does not match the namespace sent on the request"
            raise BadRequestError(reason)
    kind.default(obj)
    kind.prepare_for_create(obj, Change(context.user, context.received))
    if errors := kind.validate(obj):
        group, name = kind.resource.group, kind.resource.kind
        # kube-apiserver's errors about access reviews name no kind, and clients may compare them
        raise InvalidError.of(group, "" if group == ACCESS else name, "", errors)


async def review(context: RequestContext, reviewers: Reviewers, kind: Kind) -> Response:
    """Answer a POST of a virtual kind with 201 and the completed object."""
    resource = kind.resource
    if context.info.verb != "create" or context.info.name:
        raise MethodNotAllowedError()
    options = parse_write_options(context.request.query)
    obj = await read_object(
        context, reviewers.registry.long_work, resource.schema, resource.kind, resource.api_version, options
    )
    await _run(context, reviewers, lambda: _prepare(context, kind, obj))
    answer = await REVIEWS[resource.plural](context, reviewers, obj)

    def respond() -> Response:
        complete(answer, resource.schema)
        return object_response(context.request, answer, resource.schema, 201)

    return await _run(context, reviewers, respond)


async def _run(context: RequestContext, reviewers: Reviewers, compute: Callable[[], T]) -> T:
    """Return the result of `compute`, which reads the review: beside the event loop where its body is large."""
    request = context.request
    size = work_size(await request.body(), request.header(b"content-type"))
    return await reviewers.registry.long_work.run(size, context.user.username, compute)
