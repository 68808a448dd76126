"""Serve what servers of k3s ask besides certificates: the keys and tokens of the cluster, and the addresses of its servers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from mooring.api.mooring.tombstones import refuse_unsettled
from mooring.api.view import Views
from mooring.apimachinery.codec.json import decode_json, encode_json
from mooring.duration import parse_duration
from mooring.errors import (
    ApiError,
    BadRequestError,
    ConfigError,
    InternalServerError,
    MooringError,
    TooManyRequestsError,
)
from mooring.secret import Secret
from mooring.server.requestcontext import RequestContext
from mooring.server.transport.http import JSON, Response
from mooring.trust.k3s import token as k3s
from mooring.trust.k3s.acceptedtokens import parse_agent_token
from mooring.trust.k3s.cahash import accepted_hashes
from mooring.trust.sharedkeys.serverjoin import DEFAULT_GRACE, ETCD_DISABLED, RotationRefusedError, check_grace
from mooring.trust.sharedkeys.servertoken import AgentRotationRefusedError, parse_token

# Addresses of the API servers, from the EndpointSlices of the Service `default/kubernetes`, as k3s lists them.

NAMESPACE, SERVICE, PORT_NAME = "default", "kubernetes", "https"
SERVICE_LABEL = "kubernetes.io/service-name"


def api_server_addresses(views: Views) -> tuple[str, ...]:
    """Return `host:port` of each server that is ready, in order and each once."""
    return tuple(dict.fromkeys(_addresses(views)))


def _addresses(views: Views) -> Iterator[str]:
    for found in views["endpointslices"].list(NAMESPACE):
        if (found["metadata"].get("labels") or {}).get(SERVICE_LABEL) != SERVICE:
            continue
        ports = [
            port["port"] for port in found.get("ports") or () if port.get("name") == PORT_NAME and port.get("port")
        ]
        for endpoint in found.get("endpoints") or ():
            if (endpoint.get("conditions") or {}).get("ready") is False:
                continue
            for address in endpoint["addresses"]:
                yield from (f"[{address}]:{port}" if ":" in address else f"{address}:{port}" for port in ports)


# Serve what servers ask of servers: the sealed keys of the cluster, a new server token, and a new agent token.
#
# Rules kept here (docs/protocol/k3s.md#server-level):
# * Keys leave this server sealed only, as they stand in the store. A client that expects them in clear gets none.
# * A body is checked whole before anything changes. A new token that has the form of a bootstrap token is refused: k3s ends with
#   half of a rotation there.
# * `newToken` replaces the server token, `newAgentToken` the agent token. A server that does not know the latter refuses the
#   body, and changes nothing.
# * One rotation runs at a time in a process: each takes a thread and 64 MiB. Its credential is judged once it has its turn, by
#   the files of now: a token that was replaced a moment ago replaces none.
# * A failure is 500, and names the Audit-Id under which the log has the reason. No answer has a token.

SERVER_FIELD, AGENT_FIELD = "newToken", "newAgentToken"

log = logging.getLogger("mooring.server")
Confirm = Callable[[], Awaitable[None]]

STORE_NOT_SHARED = (
    f"{ETCD_DISABLED}: the objects of this cluster are in a file of its first server, which other machines cannot share; move them "
    "to etcd first (docs/grow-to-three-machines.md)"
)
"""k3s's words, and the remedy."""


@dataclass(slots=True, kw_only=True, eq=False)
class ServerKeys:
    """The keys and the token that servers share."""

    configuration: Callable[[], Mapping[str, Any]]
    """Returns the document of `/v1-k3s/config`: with an agent token, the server token does not open that path."""
    sealed_row: Callable[[], Awaitable[Mapping[str, Any] | None]]
    """Returns the row of the store, decoded; None when it does not hold the keys. Raises MooringError."""
    views: Views
    datastore: Mapping[str, Any] | None
    """Place of the store that joining servers use; None when they cannot reach it."""
    server_ca: Callable[[], bytes]
    """Returns the CAs of the servers' certificates: a new token that names other CAs is of another cluster."""
    read_tokens: Callable[[], None]
    """Has the tokens of the files judge from now on. Raises ConfigError."""
    rotate: Callable[[Secret | None, timedelta, Confirm], Awaitable[object]]
    """Replaces the server token; without a token makes one. Confirms once no other rotation can begin. Raises MooringError."""
    rotate_agent: Callable[[Secret | None, timedelta, Confirm], Awaitable[object]]
    """Replaces the agent token likewise."""
    is_rotating: bool = field(default=False, init=False)


async def server_bootstrap(context: RequestContext, keys: ServerKeys) -> Response:
    """Answer with the sealed keys and the place of the store. Raises BadRequestError."""
    if keys.datastore is None:
        raise BadRequestError(STORE_NOT_SHARED)
    refuse_unsettled(keys.views)
    row = await keys.sealed_row()
    if row is None:
        raise BadRequestError("the keys of this cluster are not in its store: its servers run with --shared-keys files")
    await context.confirm()
    # Judged again on the fresh views, which may have tombstones that wait to be settled.
    refuse_unsettled(keys.views)
    answer = {"version": 1, "configuration": keys.configuration(), "sealedKeys": row, "datastore": keys.datastore}
    return Response(200, encode_json(answer) + b"\n", (JSON,))


async def rotate_token(context: RequestContext, keys: ServerKeys) -> Response:
    """Replace the server token or the agent token. Raises BadRequestError, TooManyRequestsError, InternalServerError."""
    name, token, grace = _read(await context.request.body(), keys.server_ca())
    what, rotate = ("server", keys.rotate) if name == SERVER_FIELD else ("agent", keys.rotate_agent)
    # Set and read without an `await` in between, so that one rotation runs at a time.
    if keys.is_rotating:
        raise TooManyRequestsError("a token is being rotated; try again later")
    keys.is_rotating = True

    async def confirm() -> None:
        keys.read_tokens()
        await context.confirm()

    try:
        await rotate(token, grace, confirm)
    except ApiError:
        raise
    except (RotationRefusedError, AgentRotationRefusedError) as error:
        raise BadRequestError(f"{name}: {error}") from None
    except MooringError as error:
        log.error("%s: the %s token was not rotated: %s", context.audit_id, what, error)
        raise InternalServerError(
            f"the {what} token was not rotated; the operator finds the reason under Audit-Id {context.audit_id}"
        ) from None
    finally:
        keys.is_rotating = False
    return Response(200)


def _agent_token(data: bytes) -> Secret:
    return parse_agent_token(data, AGENT_FIELD)


def _read(body: bytes, server_ca: bytes) -> tuple[str, Secret | None, timedelta]:
    """Return the field of the new token, the token, None when the server makes it, and the grace.

    Raises BadRequestError, which repeats no value.

    A token with the hash of a CA must name one of the CAs in `server_ca`.
    """
    given = decode_json(body)
    if not isinstance(given, dict):
        raise BadRequestError("the body is not a JSON object")
    name = AGENT_FIELD if AGENT_FIELD in given else SERVER_FIELD
    if name == AGENT_FIELD and SERVER_FIELD in given:
        raise BadRequestError(f"{AGENT_FIELD}: give it or {SERVER_FIELD}, not both")
    text, grace = given.get(name), given.get("grace")
    if not isinstance(text, str):
        what = "agent" if name == AGENT_FIELD else "server"
        raise BadRequestError(f'{name}: give the new {what} token, or "" for one that the server makes')
    if grace is not None and not isinstance(grace, str):
        raise BadRequestError("grace: give a duration such as 24h0m0s")
    try:
        data = text.encode("utf-8", "surrogatepass")
        parse = parse_token if name == SERVER_FIELD else _agent_token
        token = parse(data) if text else None
        named = k3s.parse_token(data.strip()).ca_hash if text else ""
    except ConfigError as error:
        raise BadRequestError(f"{name}: {str(error).removeprefix(f'{name}: ')}") from None
    if named and named not in accepted_hashes(server_ca):
        raise BadRequestError(
            f"{name}: its CA hash is not that of this cluster; no machine could join with this token: leave the hash out"
        )
    try:
        return name, token, check_grace(DEFAULT_GRACE if grace is None else parse_duration(grace))
    except (ConfigError, ValueError) as error:
        reason = error if isinstance(error, ConfigError) else "give a duration such as 24h0m0s"
        raise BadRequestError(f"grace: {reason}") from None
