"""Serve the state of a server: health, metrics, its own report, the keys of encryption, and the CRL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from mooring.apimachinery.codec.json import encode_json
from mooring.apimachinery.negotiation import parse_accept
from mooring.apimachinery.schema import Obj
from mooring.errors import ServiceUnavailableError
from mooring.pki.x509.crl import SignedList
from mooring.server.endpoints.tokens import API_VERSION
from mooring.server.healthchecks import HealthChecks
from mooring.server.requestcontext import RequestContext
from mooring.server.response.render import NOSNIFF, content_type
from mooring.server.transport.http import Response
from mooring.storage.encryption.storage import Usage

# Serve `/healthz`, `/livez` and `/readyz`, whole or one check, with `?verbose` and `?exclude=`.
#
# Source: docs/protocol/health.md#health-checks.

_TEXT = content_type("text/plain; charset=utf-8")


async def health(context: RequestContext, checks: HealthChecks) -> Response:
    """Answer 200 `ok`, or 500 with the names of the failed checks."""
    _, endpoint, *rest = context.info.path.split("/", 2)
    if rest and rest[0]:
        result = checks.single(endpoint, rest[0])
        if result is None:
            return Response(404, b"404 page not found\n", (_TEXT, NOSNIFF))
        healthy, text = result
    else:
        query = context.request.query
        healthy, text = checks.report(endpoint, query.get("exclude", ()), "verbose" in query)
    return Response(200 if healthy else 500, text.encode(), (_TEXT, NOSNIFF))


# Serve `/metrics` in the Prometheus text format.


async def metrics(context: RequestContext, text: Callable[[], Awaitable[bytes]]) -> Response:
    """Answer with every metric of this server: of all workers of the host."""
    return Response(200, await text(), (content_type("text/plain; version=0.0.4; charset=utf-8"),))


# Serve GET `/mooring/v1/status`: what one server knows of itself, for `mooring status` and `mooring certs check`.
#
# Rules kept here:
# * RBAC decides which users may read it (ClusterRole `mooring:status`, which no default binding grants; cluster-admin includes
#   it). It shows names of files and ends of certificates, and no key.
# * Files are read in a thread, and one report is made at a time in a process.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StatusReport:
    """Parts from which the report is made."""

    read: Callable[[], Obj]
    """Returns the report. Reads files."""
    notices: Callable[[], Awaitable[Obj | None]]
    """Returns the state of notices, of all workers; None without a receiver."""
    join_rule_issuers: Callable[[], Awaitable[Sequence[Obj]]]
    """Returns the issuers of join rules that did not give a worker their keys."""
    making: asyncio.Lock = field(default_factory=asyncio.Lock)


async def status(context: RequestContext, report: StatusReport) -> Response:
    """Answer with the report of this server."""
    async with report.making:
        found, notices = await asyncio.to_thread(report.read), await report.notices()
        issuers = await report.join_rule_issuers()
    found |= {"joinRuleIssuers": list(issuers)} | ({} if notices is None else {"notices": notices})
    body = encode_json({"kind": "ServerStatus", "apiVersion": API_VERSION, **found})
    return Response(200, body, (content_type("application/json"),))


# Serve GET `/mooring/v1/encryption`: which keys have encrypted how many stored values (`mooring secrets-encryption status`).
#
# Rules kept here:
# * RBAC decides which users may read it; no default role but cluster-admin allows it. It shows names of keys, and no key.
# * Every stored value is read and decrypted, in slices, so that stale and unreadable ones are counted and not guessed. One report
#   is made at a time in a process.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncryptionReport:
    """Parts from which the report is made."""

    config_hash: Callable[[], str]
    """Returns the hash of the file in force, "" without one."""
    usage: Callable[[], Awaitable[Sequence[Usage]]]
    making: asyncio.Lock = field(default_factory=asyncio.Lock)


async def encryption_at_rest(context: RequestContext, report: EncryptionReport) -> Response:
    """Answer with the hash of the file in force, and the keys of each resource."""
    async with report.making:
        usage = await report.usage()
    resources = [
        {
            "resource": str(one.resource),
            "writes": one.writes,
            "values": one.values,
            "stale": one.stale,
            "unreadable": one.unreadable,
        }
        for one in usage
    ]
    body = encode_json({"configHash": report.config_hash(), "resources": resources})
    return Response(200, body, (content_type("application/json"),))


# Serve GET `/mooring/v1/crl`: the CRL of the cluster's CA, as PEM or DER.
#
# Rules kept here:
# * `Accept: application/pkix-crl` gets DER (RFC 2585); any other request gets PEM.
# * The list is signed beforehand. A request costs no more than its bytes, which all replies share.
# * RBAC decides which users may read it (ClusterRole `mooring:certificate-revocation-list`).

DER = "application/pkix-crl"
PEM = "application/x-pem-file"


async def revocation_list(context: RequestContext, current: Callable[[], SignedList | None]) -> Response:
    """Answer with the newest list. Raises ServiceUnavailableError when this server has none."""
    signed = current()
    if signed is None:
        raise ServiceUnavailableError(
            "this server has no CRL: it has just started, or its CA may not sign one (cRLSign); its log says which"
        )
    clauses = parse_accept(context.request.header(b"accept"))
    wants_der = bool(clauses) and f"{clauses[0].type}/{clauses[0].subtype}" == DER
    body, media = (signed.der, DER) if wants_der else (signed.pem, PEM)
    return Response(200, body, (content_type(media),))
