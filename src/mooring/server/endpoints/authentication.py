"""`/debug/authentication/…`: why was a request refused, and what would become of a credential (`mooring auth explain`).

    GET  /debug/authentication/refusals              the newest refusals, newest first; ?limit=N
    GET  /debug/authentication/refusals/<audit-id>   one of them
    POST /debug/authentication/explain               a dry run: {"token": …} or {"user": …, "password": …} or {"certificate": PEM}

Rules kept here: who may ask is RBAC's business, and no role but cluster-admin grants it; a dry run counts as no guess, is kept
nowhere, and its body is in no log; a record is this process's own, which is what a 404 says.
"""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding

from mooring.api.authentication.userinfo import user_info
from mooring.apimachinery.codec.json import decode_json, encode_json
from mooring.apimachinery.schema import Obj
from mooring.authn.chain import judge
from mooring.authn.credentials import Basic, Credentials, bearer
from mooring.errors import BadRequestError, NotFoundError
from mooring.pki.errors import PkiError
from mooring.pki.pem import certificates
from mooring.secret import Secret
from mooring.server.pipeline import Context
from mooring.server.refusals import API_VERSION, told_steps
from mooring.server.response.render import content_type
from mooring.server.services import Services
from mooring.server.transport.http import Response

PREFIX = "/debug/authentication"
DEFAULT_LIMIT = 20
MAX_LIMIT = 500
"""Refusals in one answer: about half a megabyte."""
MAX_CREDENTIAL = 256 << 10
"""Bytes of a dry run's body: a chain of certificates at the most."""


async def refusals(context: Context, services: Services) -> Response:
    """One refusal, or the newest."""
    audit_id = context.info.path.rstrip("/").removeprefix(f"{PREFIX}/refusals").lstrip("/")
    if not audit_id:
        newest = services.refusals.newest(_limit(context))
        return _json({"kind": "RefusalList", "apiVersion": API_VERSION, "items": [one.object() for one in newest]})
    found = services.refusals.find(audit_id)
    if found is None:
        raise NotFoundError(
            f'no refusal is kept under "{audit_id}": each server keeps its own newest ones until it stops; '
            "its audit log may still know"
        )
    return _json(found.object())


def _limit(context: Context) -> int:
    text = context.request.query.get("limit", [str(DEFAULT_LIMIT)])[0]
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= MAX_LIMIT and len(text) < 9):
        raise BadRequestError(f"limit: give a number from 1 to {MAX_LIMIT}")
    return int(text)


async def explain(context: Context, services: Services) -> Response:
    """What every authenticator says of a credential, and who it would be."""
    credentials = _credentials(await _object(context))
    registry = services.registry
    await registry.fresh()
    outcome = await services.second_stage.run(
        judge(credentials, services.authenticators, registry.views, context.received, services.audiences)
    )
    told: Obj = {
        "kind": "Explanation",
        "apiVersion": API_VERSION,
        "authenticated": outcome.user is not None,
        "authenticators": told_steps(outcome.steps),
    }
    if outcome.user is not None:
        told["user"] = user_info(outcome.user)
    elif outcome.refusals:
        told["why"] = outcome.why
    return _json(told)


async def _object(context: Context) -> Obj:
    body = await context.request.body()
    if len(body) > MAX_CREDENTIAL:
        raise BadRequestError(f"the credential is longer than {MAX_CREDENTIAL} bytes")
    found = decode_json(body)
    if not isinstance(found, dict):
        raise BadRequestError("the body is not a JSON object")
    return found


def _credentials(given: Obj) -> Credentials:
    offered = {key: _text(given, key) for key in given}
    if set(offered) == {"token"}:
        return Credentials(bearer=bearer(offered["token"]), dry_run=True)
    if set(offered) == {"user", "password"}:
        return Credentials(basic=Basic(offered["user"], Secret(offered["password"])))
    if set(offered) == {"certificate"}:
        try:
            chain = certificates(offered["certificate"].encode())
        except PkiError as error:
            raise BadRequestError(f"certificate: {error}") from None
        return Credentials(peer=tuple(one.public_bytes(Encoding.DER) for one in chain))
    raise BadRequestError("give token, or user and password, or certificate")


def _text(given: Obj, key: str) -> str:
    value: Any = given[key]
    if not isinstance(value, str) or not value:
        raise BadRequestError(f"{key}: give a text")
    return value


def _json(obj: Obj) -> Response:
    return Response(200, encode_json(obj), (content_type("application/json"),))
