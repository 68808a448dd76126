"""Serve `/debug/authentication/…`: recent refusals, and a dry run of a credential (`mooring auth explain`).

    GET  /debug/authentication/refusals              the newest refusals, newest first; ?limit=N
    GET  /debug/authentication/refusals/<audit-id>   one of them
    POST /debug/authentication/explain               a dry run: {"token": …} or {"user": …, "password": …} or {"certificate": PEM}

Rules kept here:
* RBAC decides which users may read these paths; no default role but cluster-admin allows it.
* A dry run does not count as a failed authentication, is not recorded as a refusal, and its body is in no log.
* A worker asks the others of its host for the refusals that they keep. Each server knows its own only; the message of a 404 says
  so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mooring.api.reviews import user_info
from mooring.apimachinery.codec.json import decode_json, encode_json
from mooring.apimachinery.schema import Obj
from mooring.authn.chain import judge
from mooring.authn.credentials import Authenticator, Basic, Credentials, bearer
from mooring.errors import BadRequestError, NotFoundError
from mooring.pki.errors import PkiError
from mooring.pki.x509.bundles import NO_CERTIFICATE, certificate_blocks
from mooring.registry.store import Registry
from mooring.secret import Secret
from mooring.server.authentication.deferred import DeferredAuthentication
from mooring.server.refusedrequests import API_VERSION, Refusals, steps_to_json
from mooring.server.requestcontext import RequestContext
from mooring.server.response.render import content_type
from mooring.server.transport.http import Response
from mooring.server.workerqueries import Answers, WorkerQueries

PREFIX = "/debug/authentication"
DEFAULT_LIMIT = 20
MAX_LIMIT = 500
"""Refusals in one answer: about half a megabyte."""
_ONE, _NEWEST = "refusal", "refusals"
"""Questions to other workers: for the refusal with an Audit-Id, and for so many of the newest."""
MAX_CREDENTIAL = 256 << 10
"""Bytes of the body of a dry run: a chain of certificates fits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Explanations:
    """Parts that explain refusals and judge a credential without a request."""

    authenticators: Sequence[Authenticator]
    deferred_authentication: DeferredAuthentication
    registry: Registry
    audiences: Sequence[str]
    refusals: Refusals
    worker_queries: WorkerQueries


def answers(refusals: Refusals) -> Answers:
    """Return the answers to questions of other workers about the refusals of this one."""

    def find(audit_id: str) -> bytes:
        found = refusals.find(audit_id)
        return encode_json(found.to_json()) if found is not None else b""

    def newest(limit: str) -> bytes:
        return encode_json({"items": [refusal.to_json() for refusal in refusals.newest(int(limit))]})

    return {_ONE: find, _NEWEST: newest}


async def refusals(context: RequestContext, parts: Explanations) -> Response:
    """Answer with one refusal, or with the newest. Raises NotFoundError."""
    audit_id = context.info.path.rstrip("/").removeprefix(f"{PREFIX}/refusals").lstrip("/")
    if not audit_id:
        limit = _limit(context)
        items = [refusal.to_json() for refusal in parts.refusals.newest(limit)]
        if others := await parts.worker_queries.ask(_NEWEST, str(limit)):
            items += [item for answer in others for item in decode_json(answer)["items"]]
            items = sorted(items, key=lambda item: str(item["time"]), reverse=True)[:limit]
        return _json({"kind": "RefusalList", "apiVersion": API_VERSION, "items": items})
    found = parts.refusals.find(audit_id)
    if found is None:
        for answer in await parts.worker_queries.ask(_ONE, audit_id):
            if answer:
                return _json(decode_json(answer))
        raise NotFoundError(
            f'no refusal is kept under "{audit_id}": each server keeps its own newest ones until it stops; '
            "its audit log may still know"
        )
    return _json(found.to_json())


def _limit(context: RequestContext) -> int:
    text = context.request.query.get("limit", [str(DEFAULT_LIMIT)])[0]
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= MAX_LIMIT and len(text) < 9):
        raise BadRequestError(f"limit: give a number from 1 to {MAX_LIMIT}")
    return int(text)


async def explain(context: RequestContext, parts: Explanations) -> Response:
    """Answer with the verdict of every authenticator on a credential, and with the user that it authenticates."""
    credentials = _credentials(await _read_body(context))
    credentials.source = context.request.connection.address
    registry = parts.registry
    await registry.reader.fresh()
    outcome = await parts.deferred_authentication.settle(
        judge(credentials, parts.authenticators, registry.views, context.received, parts.audiences)
    )
    explanation: Obj = {
        "kind": "Explanation",
        "apiVersion": API_VERSION,
        "authenticated": outcome.user is not None,
        "authenticators": steps_to_json(outcome.steps),
    }
    if outcome.user is not None:
        explanation["user"] = user_info(outcome.user)
    elif outcome.refusals:
        explanation["why"] = outcome.rejected_reason
    return _json(explanation)


async def _read_body(context: RequestContext) -> Obj:
    body = await context.request.body()
    if len(body) > MAX_CREDENTIAL:
        raise BadRequestError(f"the credential is longer than {MAX_CREDENTIAL} bytes")
    found = decode_json(body)
    if not isinstance(found, dict):
        raise BadRequestError("the body is not a JSON object")
    return found


def _credentials(given: Obj) -> Credentials:
    offered = {key: _string(given, key) for key in given}
    if set(offered) == {"token"}:
        return Credentials(bearer=bearer(offered["token"]), dry_run=True)
    if set(offered) == {"user", "password"}:
        return Credentials(basic=Basic(offered["user"], Secret(offered["password"])))
    if set(offered) == {"certificate"}:
        try:
            chain = certificate_blocks(offered["certificate"].encode())
        except PkiError as error:
            raise BadRequestError(f"certificate: {error}") from None
        if not chain:
            raise BadRequestError(f"certificate: {NO_CERTIFICATE}")
        return Credentials(peer=tuple(one.der for one in chain))  # the authenticators bound what they read
    raise BadRequestError("give token, or user and password, or certificate")


def _string(given: Obj, key: str) -> str:
    value: Any = given[key]
    if not isinstance(value, str) or not value:
        raise BadRequestError(f"{key}: give a text")
    return value


def _json(obj: Obj) -> Response:
    return Response(200, encode_json(obj), (content_type("application/json"),))
