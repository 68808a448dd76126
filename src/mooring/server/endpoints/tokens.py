"""Serve the endpoints that issue tokens: logins of people, and TokenRequest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from prometheus_client import Counter

from mooring.api import reviews
from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring.tombstones import refuse_unsettled
from mooring.api.reviews import TOKEN_REQUEST, user_info
from mooring.api.view import Views
from mooring.apimachinery.codec.json import decode_json, encode_json
from mooring.apimachinery.codec.zerofields import complete
from mooring.apimachinery.names import uuid4
from mooring.apimachinery.options import parse_write_options
from mooring.apimachinery.schema import Obj
from mooring.authn import login as rules
from mooring.authn.login import claims_of
from mooring.authn.serviceaccount import ISSUED_CREDENTIAL_ID, TokenIssuance, issue
from mooring.clock import rfc3339
from mooring.errors import ApiError, BadRequestError, ForbiddenError, InvalidError, MethodNotAllowedError
from mooring.identity import UserInfo
from mooring.pki.errors import RequestError
from mooring.pki.jwt.token import MAX_TOKEN_BYTES, TokenKeys
from mooring.pki.x509 import profiles
from mooring.pki.x509.authority import serial_number
from mooring.pki.x509.bundles import certificates_pem
from mooring.pki.x509.clusterca import ClusterCa
from mooring.pki.x509.requests import parse_request
from mooring.registry.admission.request import AdmissionRequest
from mooring.registry.store import Registry
from mooring.server.endpoints.servedapi import not_found
from mooring.server.requestcontext import RequestContext
from mooring.server.resources.handlers import read_object
from mooring.server.response.render import content_type, object_response
from mooring.server.transport.http import Response

# Serve POST `/mooring/v1/login`: exchange the credential of an identity provider for a short-lived one of this cluster.
#
#     {"certificateRequest": "<PEM PKCS#10>"}  →  a client certificate for the key of the request
#     {}                                       →  a token
#
# Rules kept here (docs/adr/0020):
# * `mooring.authn.login` and RBAC (ClusterRole `mooring:login`) decide which users may log in. With a configured lifetime
#   of zero the path does not exist.
# * Only the key of a certificate request is used, together with the proof that its sender holds it. All names come from the
#   authenticated user.
# * The operator sets the lifetime of the credential; the request cannot. The credential's id goes into the audit record.
# * A certificate is issued only while this server accepts client certificates of the CA that signs it.

API_VERSION = "mooring.dev/v1"
MAX_REQUEST = 64 << 10
"""Bytes of the request body. A certificate request for an RSA key of 8192 bits takes about 3 kB."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoginParts:
    """Parts that issue the credential of a login."""

    ttl: timedelta
    """Life of the credential; zero offers no login."""
    from_request_header: bool
    """Allow users that an authenticating proxy names."""
    ca: ClusterCa
    is_authority_trusted: Callable[[], bool]
    """Returns whether this server accepts client certificates of the CA that issues now."""
    keys: TokenKeys
    views: Views
    audiences: Sequence[str]
    entropy: Callable[[int], bytes]
    count: Callable[[str], Counter]
    """Returns the counter of logins with a result."""


async def login(context: RequestContext, logins: LoginParts) -> Response:
    """Answer 201 with a credential. Raises ForbiddenError, BadRequestError."""
    if not logins.ttl:
        return not_found()
    count = logins.count
    try:
        refuse_unsettled(logins.views)
        user = _exchanged_user(context, logins)
        request_pem = _certificate_request(await context.request.body())
        await context.confirm()  # no `await` from here to the signature
        refuse_unsettled(logins.views)
        answer = _certificate(context, logins, user, request_pem) if request_pem else _token(context, logins, user)
    except ApiError:
        count("refused").inc()
        raise
    count("certificate" if request_pem else "token").inc()
    body = encode_json({"kind": "Login", "apiVersion": API_VERSION, "user": user_info(user), **answer})
    return Response(201, body, (content_type("application/json"),))


def _exchanged_user(context: RequestContext, logins: LoginParts) -> UserInfo:
    """Return the user for whom the credential is issued. Raises ForbiddenError."""
    authenticator = context.outcome.authenticator
    impersonating = context.impersonator is not None
    allowed = logins.from_request_header
    refusal = rules.refusal(context.user, authenticator, impersonating=impersonating, proxied_allowed=allowed)
    _raise_refusal(context, refusal)
    return rules.traded(context.user)


def _raise_refusal(context: RequestContext, refusal: rules.LoginRefusal | None) -> None:
    if refusal is not None:
        context.rejected_reason = refusal.code
        raise ForbiddenError(f"no login: {refusal.message}")


def _certificate_request(body: bytes) -> bytes:
    """Return the PEM certificate request in a body, empty when it requests a token. Raises BadRequestError."""
    if len(body) > MAX_REQUEST:
        raise BadRequestError(f"the body is longer than {MAX_REQUEST} bytes")
    given = decode_json(body or b"{}")
    if not isinstance(given, dict) or not given.keys() <= {"kind", "apiVersion", "certificateRequest"}:
        raise BadRequestError('the body is not a JSON object with at most "certificateRequest"')
    pem = given.get("certificateRequest", "")
    if not isinstance(pem, str) or ("certificateRequest" in given and not pem):
        raise BadRequestError("certificateRequest: give a PEM certificate request, or leave it out for a token")
    return pem.encode("utf-8", "replace")


def _certificate(context: RequestContext, logins: LoginParts, user: UserInfo, request_pem: bytes) -> Obj:
    if not logins.is_authority_trusted():
        raise ForbiddenError("no login: this server does not believe certificates of its own CA: ask for a token")
    _raise_refusal(context, rules.certificate_refusal(user))
    try:
        key = parse_request(request_pem).public_key
    except RequestError as error:
        raise BadRequestError(f"certificateRequest: {error}") from None
    now = context.received
    template = profiles.client(key, now, user.username, user.groups, logins.ttl, user.uid)
    certificate = logins.ca.authority.sign(template, now, serial_number(logins.entropy))
    fingerprint = certificate.fingerprint
    context.annotations[ISSUED_CREDENTIAL_ID] = f"X509SHA256={fingerprint}"
    return {
        "expirationTimestamp": rfc3339(certificate.not_valid_after_utc),
        "certificate": certificates_pem([certificate]).decode(),
    }


def _token(context: RequestContext, logins: LoginParts, user: UserInfo) -> Obj:
    _raise_refusal(context, rules.token_refusal(user))
    token_id = uuid4(logins.entropy)
    now = context.received.replace(microsecond=0)
    life = logins.ttl
    claims = claims_of(user, audiences=logins.audiences, now=now, lifetime=life, token_id=token_id)
    token = logins.keys.signer.sign(claims)
    if len(token) > MAX_TOKEN_BYTES:
        _raise_refusal(
            context,
            rules.LoginRefusal(rules.UNFIT, f"your names, groups and extra do not fit into {MAX_TOKEN_BYTES} bytes"),
        )
    context.annotations[ISSUED_CREDENTIAL_ID] = f"JTI={token_id}"
    return {"expirationTimestamp": rfc3339(now + life), "token": token}


# Serve TokenRequest: POST to the subresource `token` of a ServiceAccount issues a token.
#
# Admission decides besides RBAC: NodeRestriction limits the tokens that a node may request
# (docs/protocol/node-authorization.md#noderestriction).


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenRequests:
    """Parts that issue tokens of ServiceAccounts."""

    registry: Registry
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
    reviews.default(request)
    if errors := reviews.validate(request):
        raise InvalidError.of("authentication.k8s.io", "TokenRequest", "", errors)
    # No `await` from here on: admission, binding and signature see the same views.
    await context.confirm()
    # Judged again on the fresh views, which may have tombstones that wait to be settled.
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
            authorize=issuing.registry.authorize,
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
