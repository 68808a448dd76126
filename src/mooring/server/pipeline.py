"""The pipeline of every request: authentication, authorization, flow control, dispatch, audit. The steps, in order:

 1. an Audit-Id and one `now`                    2. request info from method and path
 3. credentials → authenticators → 401           4. impersonation, each part authorized
 5. authorizers → 403; then the body             6. flow control: a seat, or a queue, or 429
 7. dispatch to a resource or an endpoint        8. reply headers, metrics, one audit record

A request to the supervisor API of k3s leaves after step 2: own authenticators, groups in place of 4 and 5, then 6 to 8.

Rules kept here:
* Before authentication only the input of authentication is parsed, and of the query only a short one.
* Between reading the credentials and the decision of the authorizers there is no `await` (law 2), unless a verdict is deferred;
  the authorizers then decide on the views after it. Views that are too old are renewed first, or the answer is 503.
* A request that waited, for its record, its body or a seat, goes through steps 3 to 5 again on the newest views
  (`mooring.server.authentication.recheck`), and credential and right once more when it writes.
* The client learns no more than it may: 401 says `Unauthorized` and nothing else; a bug of the server says `InternalError` and the
  Audit-Id, under which the operator finds the rest (law 11).
* Failed authentications are limited for each source. Beyond the budget each failure is answered late and with 429. A valid
  credential is never delayed, whatever else its source sends; only passwords, which are expensive to check, are not checked for
  such a source.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from mooring.apimachinery.codec.json import MAX_BODY
from mooring.apimachinery.names import uuid4
from mooring.apimachinery.options import parse_timeout
from mooring.apimachinery.requestinfo import RequestInfo, parse_request
from mooring.apimachinery.status import forbidden_error
from mooring.authn.authfailures import AuthFailureLimiter
from mooring.authn.chain import BASIC, Outcome, RejectedBy
from mooring.authn.credentials import Authenticator, Credentials, read_credentials
from mooring.authn.impersonation import NeededGrant, read_impersonation
from mooring.authn.lastuses import CertificateUses
from mooring.authn.reasons import GUESSING
from mooring.authn.requestheader import HeaderStripper
from mooring.authz.decision import Attributes, Decision, Ruling
from mooring.clock import Clock
from mooring.errors import (
    ApiError,
    BadRequestError,
    Details,
    ForbiddenError,
    InternalServerError,
    MethodNotAllowedError,
    MooringError,
    RequestTimeoutError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from mooring.identity import ANONYMOUS, BOOTSTRAPPERS, MASTERS, NODES, RECOVERING_NODES, UserInfo, is_text
from mooring.registry.store import Registry
from mooring.server.audit.auditor import HEALTH_PATHS, Auditor
from mooring.server.authentication.deferred import DeferredAuthentication
from mooring.server.authentication.recheck import (
    UNDECIDED_SECONDS,
    CredentialEndedError,
    CredentialJudge,
    CredentialRecheck,
)
from mooring.server.flowcontrol import FlowControl
from mooring.server.metrics import Metrics
from mooring.server.openwatches import OpenWatches
from mooring.server.refusedrequests import Refusals, RefusedRequest
from mooring.server.requestcontext import RequestContext, Supervised, Supervisor, SupervisorForbiddenError
from mooring.server.response.render import challenges, error_response, reply_headers
from mooring.server.transport.http import Request, Response
from mooring.server.transport.httpgrammar import exact_text
from mooring.server.transport.responsewriter import ResponseWriter, Streamer
from mooring.trust.k3s.identity import Access, access_refusal

log = logging.getLogger("mooring.server")

TARPIT_SECONDS = 1.0
"""Delay of a failed authentication beyond the budget: a sequential scan of 10 000 tokens then takes hours."""
_UNDECIDED = ServiceUnavailableError(
    "the server cannot decide about this credential now; please try again later", Details(retry_after=UNDECIDED_SECONDS)
)
TARPIT_PLACES = 512
"""Requests that may be delayed at a time. Beyond it the 429 is immediate, because waiting connections take memory too."""
SUPERVISED_SECONDS = 60.0
"""Time for a request to the supervisor API, as for one to the Kubernetes API."""
UNAUTHORIZED = UnauthorizedError().message
_EXPLAINED = frozenset({401, 403})
"""Status codes of which every response is explained under its Audit-Id: also those of admission and of a handler."""
SUPERVISOR_UNAUTHORIZED = "not authorized"
"""k3s's words for 401."""
MAX_AUDIT_ID = 64
"""Characters of an Audit-ID of the client. A longer one is replaced, because it would fill the server's log."""

MAX_JOIN_BODY = 64 << 10
"""Bytes of the request body of a join token, a recovering node or an anonymous client. A CertificateSigningRequest takes 10 kB at
most, and many machines have a join token."""

_JOINERS = frozenset({BOOTSTRAPPERS, RECOVERING_NODES})
_READS = frozenset({"get", "list", "watch"})
_REVIEWS = frozenset(
    {
        "localsubjectaccessreviews",
        "selfsubjectaccessreviews",
        "selfsubjectreviews",
        "selfsubjectrulesreviews",
        "subjectaccessreviews",
        "tokenreviews",
    }
)
"""Kinds whose answer may wait, for a service outside or a thread, and is not a write that would judge the caller again."""
_SELECTING = frozenset({"list", "watch", "deletecollection"})
_NO_QUERY: Mapping[str, list[str]] = MappingProxyType({})


_NO_USER = UserInfo("")
_TOO_MANY_GUESSES = Outcome(None, refusals=(RejectedBy(BASIC, GUESSING),), rejected_reason=GUESSING)
_UNPARSED = RequestInfo("", False, "")
"""Request info of a request whose path or query cannot be parsed."""


class Pipeline:
    """Handler of every request, from the transport to the router."""

    def __init__(
        self,
        *,
        authenticators: Sequence[Authenticator],
        deferred_authentication: DeferredAuthentication,
        certificate_uses: CertificateUses,
        refusals: Refusals,
        schemes: Mapping[str, str],
        open_watches: OpenWatches,
        header_stripper: HeaderStripper,
        dispatch: Callable[[RequestContext], Awaitable[Response]],
        registry: Registry,
        audiences: Sequence[str],
        clock: Clock,
        entropy: Callable[[int], bytes],
        flow: FlowControl,
        auth_failures: AuthFailureLimiter,
        audit: Auditor,
        metrics: Metrics,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._authenticators = authenticators
        self._credential_judge = CredentialJudge(registry, deferred_authentication, auth_failures, audiences, clock)
        self._certificate_uses = certificate_uses
        self.refusals = refusals
        self._schemes = schemes
        self._challenges = challenges(schemes)
        self._open_watches = open_watches
        self._header_stripper = header_stripper
        self._authorize = registry.authorize
        self.dispatch = dispatch
        self._registry = registry
        self._clock = clock
        self._entropy = entropy
        self.flow = flow
        self._auth_failures = auth_failures
        self._audit = audit
        self._metrics = metrics
        self._supervisor = supervisor
        self._delayed = 0

    async def __call__(self, request: Request) -> Response:
        started = self._clock.monotonic()
        context = RequestContext(request, _UNPARSED, self._audit_id(request), self._clock.now(), _NO_USER)
        reason = ""
        panic = False
        try:
            # Inside the try: a path that is not UTF-8 is an error of the client, which is answered and recorded.
            context.info = _info_before_authentication(request)
            response = await self._answer(context)
        except ApiError as refused:
            error = refused
            if isinstance(refused, CredentialEndedError):
                _note_end(context, refused.outcome)
                error = _UNDECIDED if refused.outcome.is_undecided else refused
            reason = error.reason
            response = error_response(error, request)
            if response.status in _EXPLAINED:
                context.rejected_reason = context.rejected_reason or refused.message
            if context.rejected_reason:
                self.refusals.keep(_refusal_record(context, response.status, reason))
        except MooringError as error:
            log.error("%s: %s", context.audit_id, error)
            reason = InternalServerError.reason
            response = error_response(error, request)
        except Exception:
            log.exception("%s: unexpected error", context.audit_id)
            panic = True
            reason = InternalServerError.reason
            # The client learns the Audit-Id and nothing else, under which the operator finds the rest (law 11).
            message = f"an internal error occurred; the operator finds it under Audit-Id {context.audit_id}"
            response = error_response(InternalServerError(message), request)
        # A browser would send the passwords and tickets that it keeps, for requests of any page, after a challenge.
        is_challenged = response.status == 401 and not request.header(b"sec-fetch-site")
        offered = self._challenges if is_challenged else ()
        response.headers = reply_headers(
            response.headers, context.audit_id, context.warnings, offered, context.received
        )
        response.closes_http2 = context.impersonator is None and context.user.username in ("", ANONYMOUS)
        if response.stream is None:
            self._finish(context, response.status, reason, started)
            await self._audit.finished(context, response, reason, self._registry.long_work, panic=panic)
            # The answer waits until its record is in the file, or could not be written.
            if self._audit.blocks:
                await self._audit.stored()
        else:
            response.stream = self._record_stream(context, response.stream, response.status, started)
        return response

    async def _answer(self, context: RequestContext) -> Response:
        request = context.request
        # The supervisor API of k3s has authenticators of its own, so its requests leave before a credential is judged.
        if self._supervisor is not None and (route := self._supervisor.find(request.path)) is not None:
            return await self._answer_supervised(context, self._supervisor, route)
        credentials = _credentials(request, self._schemes)
        # Read before the credential is judged: a change of the views during the judgement then causes another one.
        revision = self._registry.cache.revision
        outcome = await self._authenticate(context, credentials, self._authenticators)
        # The views may lack a token that another process created a moment ago. A ticket of Kerberos is good for one use
        # and is not judged twice.
        if outcome.user is None and credentials.other is None and await self._refresh_views():
            outcome = await self._authenticate(context, credentials, self._authenticators)
        context.outcome = outcome
        if outcome.user is None:
            raise await self._refuse(context, outcome, UnauthorizedError())
        context.user = outcome.user
        context.recheck = recheck = self._recheck(context, credentials, self._authenticators, revision)
        # Views beyond their maximum age must not judge (docs/adr/0079). Health checks are answered, because they say
        # what is wrong.
        if self._registry.cache.is_late and not request.path.startswith(HEALTH_PATHS):
            await recheck.judge_again()
        # A long query takes milliseconds to parse, so only that of an authenticated client is parsed.
        info = context.info = parse_request(request.method, request.path, request.query)
        # Handlers know which user sent a request, and not by which credential (`mooring.authn.requestheader`).
        kept = self._header_stripper.left(request.headers)
        if len(kept) < len(request.headers):
            request.headers = kept
        context.warnings += (*credentials.warnings, *outcome.warnings)
        context.annotations.update(outcome.annotations)
        self._metrics.attempt(outcome.authenticator).inc()
        self._note_use(context)
        # Before impersonation and authorization: a request that they refuse has a RequestReceived record, too.
        if self._audit.on_arrival:
            self._audit.received(context)
        # The authorizers must judge the impersonated user, so impersonation comes first.
        self._impersonate(context)
        attributes = self._attributes(context)
        self._authorize_or_raise(context, attributes)
        if self._audit.blocks:
            await self._audit.confirm(context)
            # The record may wait for the disk. The credential may have been revoked meanwhile.
            await self._judge_again(context, recheck, attributes)
        # A body is received only from a client that may send it. It is received before a seat is taken, so that a slow
        # sender delays no other client.
        if await request.load(_body_limit(context.user)):
            # The sender decides how long the body takes. The credential may have been revoked meanwhile.
            await self._judge_again(context, recheck, attributes)
            if self._audit.keeps_bodies:
                context.body = await request.body()
        if info.path in HEALTH_PATHS or _is_exempt(context.user, info):
            return await self._run(context, recheck, attributes)
        # Anonymous requests have the lowest share: they start only while no request of a user waits.
        if context.user.username == ANONYMOUS:
            waited = await self.flow.enter_anonymous()
            try:
                if waited:
                    await self._judge_again(context, recheck, attributes)
                return await self._run(context, recheck, attributes)
            finally:
                self.flow.leave_anonymous()
        name = context.user.username
        waited = not self.flow.try_enter(name)
        if waited:
            await self.flow.enter(name)
        try:
            if waited:
                # The request waited in a queue. The credential may have been revoked meanwhile.
                await self._judge_again(context, recheck, attributes)
            response = await self._run(context, recheck, attributes)
        finally:
            self.flow.leave()
        # While several users are active, the reply must not wait for the work of the other users.
        response.at_once = self.flow.shared
        return response

    async def _judge_again(self, context: RequestContext, recheck: CredentialRecheck, attributes: Attributes) -> None:
        """Judge credential, impersonation and right again after a wait. Raises UnauthorizedError, ForbiddenError."""
        await recheck.judge_again()
        self._judge_right_again(context, attributes)

    def _judge_right_again(self, context: RequestContext, attributes: Attributes) -> None:
        """Judge impersonation and right again. Raises ForbiddenError."""
        # Impersonation starts again from the authenticated user, whose right to impersonate may have been withdrawn.
        if context.impersonator is not None:
            context.user, context.impersonator, context.constraint = context.impersonator, None, ""
            self._impersonate(context)
            attributes = self._attributes(context)
        self._authorize_or_raise(context, attributes)

    async def _answer_supervised(self, context: RequestContext, supervisor: Supervisor, route: Supervised) -> Response:
        """Answer a request to the supervisor API: authentication, the groups of the route, the body, places, and its handler.

        The groups come from the credential, which is judged again after each wait.
        """
        request = context.request
        # The path of the route and not of the client: its spelling must not become a label of a metric.
        context.info = parse_request(request.method, route.path, {})
        context.routed = context.supervised = True
        recheck: CredentialRecheck | None = None
        if route.access is Access.PUBLIC:
            context.annotations["authorization.k8s.io/decision"] = "allow"
            context.annotations["authorization.k8s.io/reason"] = "supervisor: public level"
        else:
            # Before the method is checked: a client without the groups of the route does not learn its methods.
            recheck = await self._admit(context, supervisor, route)
        if self._audit.on_arrival:
            self._audit.received(context)
        if self._audit.blocks:
            await self._audit.confirm(context)
            if recheck is not None:
                # The record may wait for the disk. The credential may have been revoked meanwhile.
                await recheck.judge_again()
        if route.methods is not None and request.method not in route.methods:
            raise MethodNotAllowedError()
        if recheck is None:
            # A public route needs no credential, so nothing can be judged again after the wait.
            await self.flow.enter_anonymous()
            try:
                return await route.serve(context)
            finally:
                self.flow.leave_anonymous()
        if await request.load(route.max_body):
            # The sender decides how long the body takes. The credential may have been revoked meanwhile.
            await recheck.judge_again()
        # Screened before a place is taken: a request that is refused anyway must not occupy one.
        if route.screen is not None:
            route.screen(context)
        places = supervisor.in_flight.place(request.method) if route.access is Access.AGENT else nullcontext()
        await self.flow.enter(context.user.username)
        try:
            with places:
                async with asyncio.timeout(SUPERVISED_SECONDS):
                    # The request may have waited for its seat. The credential may have been revoked meanwhile.
                    await recheck.judge_again()
                    return await route.serve(context)
        except TimeoutError as error:
            raise RequestTimeoutError(f"the server did not answer within {SUPERVISED_SECONDS:.0f} seconds") from error
        finally:
            self.flow.leave()

    async def _admit(self, context: RequestContext, supervisor: Supervisor, route: Supervised) -> CredentialRecheck:
        """Authenticate a request to the supervisor API, and return what judges its credential again.

        Raises UnauthorizedError, ForbiddenError, TooManyRequestsError.
        """
        request = context.request
        credentials = _credentials(request, supervisor.schemes)
        # A token that a person chose can be guessed, and opens the keys of the cluster: no password of a source beyond
        # its budget of failures is judged.
        if credentials.basic is not None and self._auth_failures.exhausted(
            request.connection.network, self._clock.monotonic()
        ):
            raise await self._refuse(context, _TOO_MANY_GUESSES, TooManyRequestsError())
        # Read before the credential is judged: a change of the views during the judgement then causes another one.
        revision = self._registry.cache.revision
        authenticators = supervisor.authenticators_of(route)
        outcome = await self._authenticate(context, credentials, authenticators)
        # The views may lack a token or a certificate that another process issued a moment ago.
        is_refused = outcome.user is None or (route.needs_machine and outcome.refusals)
        if is_refused and await self._refresh_views():
            outcome = await self._authenticate(context, credentials, authenticators)
        context.outcome = outcome
        if outcome.refusals and outcome.user is None:
            raise await self._refuse(context, outcome, UnauthorizedError(message=SUPERVISOR_UNAUTHORIZED))
        if outcome.user is not None:
            context.user = outcome.user
            context.warnings += (*credentials.warnings, *outcome.warnings)
            context.annotations.update(outcome.annotations)
            self._metrics.attempt(outcome.authenticator).inc()
            self._note_use(context)
        impersonates = any(name.startswith(b"impersonate-") for name, _ in request.headers)
        reason = access_refusal(route.access, outcome.authenticator, context.user.groups, impersonates=impersonates)
        context.annotations["authorization.k8s.io/decision"] = "forbid" if reason else "allow"
        context.annotations["authorization.k8s.io/reason"] = reason or f"supervisor: {route.access.value} level"
        if reason:
            context.rejected_reason = reason
            source = request.connection.network
            log.info("%s: supervisor: %s is forbidden for %s: %s", context.audit_id, route.path, source, reason)
            raise SupervisorForbiddenError("forbidden")
        context.recheck = recheck = self._recheck(
            context, credentials, authenticators, revision, SUPERVISOR_UNAUTHORIZED
        )
        # Views beyond their maximum age must not judge (docs/adr/0079).
        if self._registry.cache.is_late:
            await recheck.judge_again()
        return recheck

    def _recheck(
        self,
        context: RequestContext,
        credentials: Credentials,
        authenticators: Sequence[Authenticator],
        revision: int,
        unauthorized: str = UNAUTHORIZED,
    ) -> CredentialRecheck:
        return CredentialRecheck(
            self._credential_judge,
            credentials,
            authenticators,
            context.outcome,
            context.request.connection.network,
            context.received,
            revision,
            unauthorized,
        )

    async def _authenticate(
        self, context: RequestContext, credentials: Credentials, authenticators: Sequence[Authenticator]
    ) -> Outcome:
        """Run the chain of authenticators. Waits only for deferred verdicts."""
        source = context.request.connection.network
        return await self._credential_judge.judge(credentials, authenticators, source, context.received)

    def _note_use(self, context: RequestContext) -> None:
        """Note the use of a certificate, which may be that of a second machine with the same identity."""
        certificate = context.outcome.certificate
        if certificate is not None:
            self._certificate_uses.note(
                certificate, context.request.connection.address, self._registry.views, context.received
            )

    def _attributes(self, context: RequestContext) -> Attributes:
        info = context.info
        selects = info.verb in _SELECTING and not info.verb_in_path
        query = context.request.query if selects else _NO_QUERY
        return Attributes(
            user=context.user,
            verb=info.verb,
            group=info.group,
            version=info.version,
            resource=info.resource,
            subresource=info.subresource,
            namespace=info.namespace,
            name=info.name,
            path=info.path,
            field_selector=query.get("fieldSelector", ("",))[0],
            label_selector=query.get("labelSelector", ("",))[0],
        )

    async def _run(self, context: RequestContext, recheck: CredentialRecheck, attributes: Attributes) -> Response:
        """Dispatch the request. A read that waited for newer views counts by them: they may say that the credential has ended.

        So does one that waited in vain. A review, and a POST to a path that is not a resource, count by the views after them: a
        service outside may have been asked.
        """
        registry = self._registry
        # Read before the handler: a read that waited for newer views is judged by them.
        revision = registry.cache.revision
        recheck.require(partial(self._judge_right_again, context, attributes))
        try:
            response = await self._run_in_time(context)
        finally:
            recheck.require(None)  # it refers to the context, which refers to the recheck
        info = context.info
        if response.stream is not None or info.path.startswith(HEALTH_PATHS) or context.ended_itself:
            return response
        if info.verb in _READS:
            has_waited = registry.cache.revision != revision or registry.cache.is_late
        else:
            # A service outside may have been asked, or a thread. A write is judged at its commit.
            has_waited = info.resource in _REVIEWS or not info.is_resource
        if has_waited:
            await self._judge_again(context, recheck, attributes)
        return response

    async def _run_in_time(self, context: RequestContext) -> Response:
        query = context.request.query
        if context.info.verb in _READS and "timeout" not in query:
            return await self.dispatch(context)  # reads come from memory, and wait for it under shorter limits
        seconds = parse_timeout(query).total_seconds()
        try:
            async with asyncio.timeout(seconds):
                return await self.dispatch(context)
        except TimeoutError as error:
            raise RequestTimeoutError(f"the server did not answer within {seconds:.0f} seconds") from error

    def _authorize_or_raise(self, context: RequestContext, attributes: Attributes) -> None:
        self._enforce(context, attributes, self._authorize(attributes))

    def _enforce(self, context: RequestContext, attributes: Attributes, decision: Decision) -> None:
        """Note a decision for the audit record. Raises ForbiddenError unless it allows."""
        context.annotations["authorization.k8s.io/decision"] = "allow" if decision.allowed else "forbid"
        context.annotations["authorization.k8s.io/reason"] = decision.reason
        if not decision.allowed:
            error = forbidden_error(
                user=attributes.user.username,
                verb=attributes.verb,
                group=attributes.group,
                resource=attributes.resource,
                subresource=attributes.subresource,
                namespace=attributes.namespace,
                name=attributes.name,
                path=attributes.path,
                reason=decision.reason,
            )
            context.rejected_reason = error.message
            raise error

    async def _refresh_views(self) -> bool:
        """Return True when the views lacked a write of another process, such as a token created a moment ago."""
        before = self._registry.cache.revision
        await self._registry.reader.fresh()
        return self._registry.cache.revision != before

    async def _refuse(self, context: RequestContext, outcome: Outcome, unauthorized: ApiError) -> ApiError:
        """Record a refusal. Return `unauthorized`, or 429 beyond the budget of failures, or 503 where the server cannot decide now.

        A request without credentials does not count as a failure: some clients send a password only after a 401.
        """
        self._metrics.attempt("refused").inc()
        reasons = "; ".join(
            f"{refusal.authenticator}: {refusal.reason}" + (f" ({refusal.detail})" if refusal.detail else "")
            for refusal in outcome.refusals
        )
        context.annotations["authentication.mooring.dev/refused"] = reasons or outcome.rejected_reason
        context.rejected_reason = outcome.rejected_reason
        source = context.request.connection.network
        is_failure = any(not (refusal.is_undecided or refusal.ends_chain) for refusal in outcome.refusals)
        seconds = self._auth_failures.failed(source, self._clock.monotonic()) if is_failure else 0.0
        if not seconds:
            log.info(
                "%s: authentication refused for %s: %s", context.audit_id, source, reasons or outcome.rejected_reason
            )
            return _UNDECIDED if outcome.is_undecided else unauthorized
        self._metrics.refused_guesses.inc()
        # Delayed connections take memory, so beyond this number the 429 is immediate.
        if self._delayed < TARPIT_PLACES:
            self._delayed += 1
            try:
                await self._clock.sleep(TARPIT_SECONDS)
            finally:
                self._delayed -= 1
        return TooManyRequestsError(
            "too many failed authentications from this address; check the credential and try again later",
            retry_after=max(1, round(seconds)),
        )

    def _impersonate(self, context: RequestContext) -> None:
        headers: dict[str, list[str]] = {}
        for name, value in context.request.headers:
            if name.startswith(b"impersonate-"):
                headers.setdefault(name.decode("latin-1"), []).append(exact_text(value))
        if not headers:
            return
        refusal: ApiError | None = None
        requested: Attributes | None = None
        for attempt in read_impersonation(headers, context.user):
            try:
                if attempt.mode:
                    requested = requested or self._attributes(context)
                    self._authorize_or_raise(context, replace(requested, verb=attempt.verb_on(requested.verb)))
                for grant in attempt.grants:
                    self._authorize_or_raise(context, _grant_attributes(context.user, attempt.verb, grant))
                # After the grants, so that the first missing grant is the one that is reported.
                if attempt.prohibited is not None:
                    refused = _grant_attributes(context.user, attempt.verb, attempt.prohibited)
                    self._enforce(context, refused, Decision(Ruling.DENY, attempt.reason))
            except ForbiddenError as error:
                refusal = refusal or error
                continue
            # A former mode may have failed. The request is allowed, so it has no reason of a rejection.
            context.rejected_reason = ""
            context.impersonator, context.user, context.constraint = context.user, attempt.user, attempt.constraint
            return
        if refusal is not None:
            raise refusal

    def _audit_id(self, request: Request) -> str:
        given = request.header(b"audit-id")
        if given and len(given) <= MAX_AUDIT_ID and given.isascii() and given.isprintable():
            return given
        return uuid4(self._entropy)

    def _record_stream(self, context: RequestContext, stream: Streamer, status: int, started: float) -> Streamer:
        async def run(writer: ResponseWriter) -> None:
            if self._audit.on_arrival:
                self._audit.started(context, status)
            if self._audit.blocks:
                await self._audit.stored()
            try:
                with self._open_watches.judging(context, writer, partial(self._end_of, context)):
                    await stream(writer)
            finally:
                self._finish(context, status, "", started)
                self._audit.ended(context, status)

        return run

    def _end_of(self, context: RequestContext) -> str:
        """Return why a running watch ends now: its credential, its impersonation or its right has ended. "" while it goes on."""
        try:
            if context.recheck is not None:
                context.recheck.check_running()
            if not context.supervised:
                self._judge_right_again(context, self._attributes(context))
        except CredentialEndedError as ended:
            return _end_reasons(ended.outcome)
        except ApiError as refused:
            return refused.message
        return ""

    def _finish(self, context: RequestContext, status: int, reason: str, started: float) -> None:
        info = context.info
        known = context.routed  # names that a client made up must not become labels
        group, resource, subresource = (info.group, info.resource, info.subresource) if known else ("", "", "")
        self._metrics.request(info.verb if known else "", group, resource, subresource, str(status)).inc()
        if info.verb != "watch" and known:
            self._metrics.duration(info.verb, group, resource).observe(self._clock.monotonic() - started)


def _credentials(request: Request, schemes: Mapping[str, str]) -> Credentials:
    """Return the credentials of a request. `schemes`: those beside Bearer that an authenticator judges."""
    sent = request.headers  # those of now: the credential is judged again after the headers are stripped
    return read_credentials(
        request.header_reader(),
        request.connection.chain,
        request.connection.peer_memo,
        path=request.path,
        schemes=schemes,
        header_names=lambda: (name.decode("latin-1") for name, _ in sent),
        source=request.connection.address,
    )


def _body_limit(user: UserInfo) -> int:
    return MAX_JOIN_BODY if user.username == ANONYMOUS or not _JOINERS.isdisjoint(user.groups) else MAX_BODY


def _info_before_authentication(request: Request) -> RequestInfo:
    """Return the request info without a long query, which takes milliseconds to parse and is needed for authorization only.

    The audit record of a request that fails authentication may therefore say `list` when a long query asks for a watch. Raises
    BadRequestError for a path or a query that is not UTF-8.
    """
    if not is_text(request.path):
        raise BadRequestError("the path of the request is not UTF-8")
    return parse_request(request.method, request.path, request.query if request.is_query_cheap else {})


def _end_reasons(outcome: Outcome) -> str:
    return (
        "; ".join(f"{one.authenticator}: {one.reason} ({one.detail})" for one in outcome.refusals)
        or outcome.rejected_reason
    )


def _note_end(context: RequestContext, outcome: Outcome) -> None:
    """Note for the operator why the credential ended before the request took effect."""
    reasons = _end_reasons(outcome)
    context.outcome = outcome
    context.rejected_reason = outcome.rejected_reason
    context.annotations["authentication.mooring.dev/ended"] = reasons
    user = context.impersonator or context.user
    log.info(
        "%s: the credential of %s ended before the request took effect: %s", context.audit_id, user.username, reasons
    )


def _refusal_record(context: RequestContext, code: int, reason: str) -> RefusedRequest:
    user = context.impersonator or context.user
    return RefusedRequest(
        audit_id=context.audit_id,
        time=context.received,
        code=code,
        reason=reason,
        method=context.request.method,
        path=context.request.path,
        source=context.request.connection.source,
        steps=context.outcome.steps,
        rejected_reason=context.rejected_reason,
        user=user.username,
        groups=user.groups,
    )


def _grant_attributes(user: UserInfo, verb: str, grant: NeededGrant) -> Attributes:
    return Attributes(
        user=user,
        verb=verb,
        group=grant.group,
        version=grant.version,
        resource=grant.resource,
        subresource=grant.subresource,
        namespace=grant.namespace,
        name=grant.name,
    )


def _is_exempt(user: UserInfo, info: RequestInfo) -> bool:
    return MASTERS in user.groups or (info.resource == "leases" and NODES in user.groups)
