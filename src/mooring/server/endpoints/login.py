"""POST `/mooring/v1/login`: who has proved by a provider's credential who they are gets a short-lived one of the cluster.

    {"certificateRequest": "<PEM PKCS#10>"}  →  a client certificate for the key of the request
    {}                                       →  a token

Rules kept here (docs/adr/0020):
* Who may is `mooring.authn.login.exchange`'s to say, and RBAC's (ClusterRole `mooring:login`). With a life of zero there is no
  such path.
* Of the request only the key counts, and that its sender has it. Names come from who was authenticated, and from nothing else.
* The credential lives as long as the operator says, whatever is asked for; its id goes into the audit record.
* A certificate is offered only while this server believes the CA that signs it.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.hashes import SHA256

from mooring.api.authentication.userinfo import user_info
from mooring.apimachinery.codec.json import decode_json, encode_json
from mooring.apimachinery.schema import Obj
from mooring.authn.login import exchange as rules
from mooring.authn.login.authenticator import claims_of
from mooring.authn.serviceaccount.tokenrequest import ISSUED_CREDENTIAL_ID
from mooring.clock import rfc3339
from mooring.errors import ApiError, BadRequestError, ForbiddenError
from mooring.identity import UserInfo
from mooring.pki.errors import RequestError
from mooring.pki.jwt.compact import MAX_TOKEN_BYTES
from mooring.pki.pem import certificates_pem
from mooring.pki.x509 import profiles
from mooring.pki.x509.authority import serial_number
from mooring.pki.x509.requests import parse_request
from mooring.server.endpoints.documents import not_found
from mooring.server.pipeline import Context, uuid4
from mooring.server.response.render import content_type
from mooring.server.services import Services
from mooring.server.transport.http import Response

API_VERSION = "mooring.dev/v1"
MAX_REQUEST = 64 << 10
"""Bytes of the body: a request for an RSA key of 8192 bits has about 3 kB."""


async def login(context: Context, services: Services) -> Response:
    """The credential, for who may have one."""
    if not services.login_ttl:
        return not_found()
    count = services.metrics.login
    try:
        user = _trader(context, services)
        request_pem = _certificate_request(await context.request.body())
        answer = _certificate(context, services, user, request_pem) if request_pem else _token(context, services, user)
    except ApiError:
        count("refused").inc()
        raise
    count("certificate" if request_pem else "token").inc()
    body = encode_json({"kind": "Login", "apiVersion": API_VERSION, "user": user_info(user), **answer})
    return Response(201, body, (content_type("application/json"),))


def _trader(context: Context, services: Services) -> UserInfo:
    """Who the credential is for. Raises ForbiddenError."""
    accepted_by = context.outcome.authenticator
    impersonating = context.impersonator is not None
    allowed = services.login_from_request_header
    refusal = rules.refusal(context.user, accepted_by, impersonating=impersonating, proxied_allowed=allowed)
    _refuse(context, refusal)
    return rules.traded(context.user)


def _refuse(context: Context, refusal: rules.Refusal | None) -> None:
    if refusal is not None:
        context.why = refusal.code
        raise ForbiddenError(f"no login: {refusal.message}")


def _certificate_request(body: bytes) -> bytes:
    """The request for a certificate; empty when a token is wanted. Raises BadRequestError."""
    if len(body) > MAX_REQUEST:
        raise BadRequestError(f"the body is longer than {MAX_REQUEST} bytes")
    asked = decode_json(body or b"{}")
    if not isinstance(asked, dict) or not asked.keys() <= {"kind", "apiVersion", "certificateRequest"}:
        raise BadRequestError('the body is not a JSON object with at most "certificateRequest"')
    text = asked.get("certificateRequest", "")
    if not isinstance(text, str) or ("certificateRequest" in asked and not text):
        raise BadRequestError("certificateRequest: give a PEM certificate request, or leave it out for a token")
    return text.encode("utf-8", "replace")


def _certificate(context: Context, services: Services, user: UserInfo, request_pem: bytes) -> Obj:
    if not services.own_ca_believed():
        raise ForbiddenError("no login: this server does not believe certificates of its own CA: ask for a token")
    _refuse(context, rules.certificate_refusal(user))
    try:
        key = parse_request(request_pem).public_key
    except RequestError as error:
        raise BadRequestError(f"certificateRequest: {error}") from None
    now = context.received
    template = profiles.client(key, now, user.username, user.groups, services.login_ttl, user.uid)
    certificate = services.authority.sign(template, now, serial_number(services.entropy))
    fingerprint = certificate.fingerprint(SHA256()).hex()
    context.annotations[ISSUED_CREDENTIAL_ID] = f"X509SHA256={fingerprint}"
    return {
        "expirationTimestamp": rfc3339(certificate.not_valid_after_utc),
        "certificate": certificates_pem([certificate]).decode(),
    }


def _token(context: Context, services: Services, user: UserInfo) -> Obj:
    _refuse(context, rules.token_refusal(user))
    token_id = uuid4(services.entropy)
    now = context.received.replace(microsecond=0)
    life = services.login_ttl
    claims = claims_of(user, audiences=services.audiences, now=now, lifetime=life, token_id=token_id)
    token = services.token_signer.sign(claims)
    if len(token) > MAX_TOKEN_BYTES:
        _refuse(
            context, rules.Refusal(rules.UNFIT, f"your names, groups and extra do not fit into {MAX_TOKEN_BYTES} bytes")
        )
    context.annotations[ISSUED_CREDENTIAL_ID] = f"JTI={token_id}"
    return {"expirationTimestamp": rfc3339(now + life), "token": token}
