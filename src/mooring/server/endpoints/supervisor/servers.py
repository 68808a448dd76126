"""Serve what servers ask of servers: the sealed keys of the cluster, and a new server token.

Rules kept here (docs/protocol/k3s.md#server-level):
* Keys leave this server sealed only, as they stand in the store. A client that expects them in clear gets none.
* A body is checked whole before anything changes. A new token that has the form of a bootstrap token is refused: k3s ends with half
  of a rotation there.
* One rotation runs at a time in a process: each takes a thread and 64 MiB.
* A failure is 500, and names the Audit-Id under which the log has the reason. No answer has a token.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from mooring.api.view import Views
from mooring.apimachinery.codec.json import decode_json, encode_json
from mooring.duration import parse_duration
from mooring.errors import BadRequestError, ConfigError, InternalServerError, MooringError, TooManyRequestsError
from mooring.secret import Secret
from mooring.server.endpoints.unsettled import refuse_unsettled
from mooring.server.requestcontext import Context
from mooring.server.transport.http import JSON, Response
from mooring.trust.k3s import token as k3s
from mooring.trust.k3s.cahash import accepted_hashes
from mooring.trust.sharedkeys.rotation import DEFAULT_GRACE, RotationRefusedError, check_grace
from mooring.trust.sharedkeys.servertoken import parse_token

log = logging.getLogger("mooring.server")

ETCD_DISABLED = (
    "etcd disabled: the objects of this cluster are in a file of its first server, which other machines cannot share; move them to "
    "etcd first (docs/grow-to-three-machines.md)"
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
    rotate: Callable[[Secret | None, timedelta], Awaitable[object]]
    """Replaces the server token; without a token makes one. Raises MooringError."""
    is_rotating: bool = field(default=False, init=False)


async def server_bootstrap(context: Context, keys: ServerKeys) -> Response:
    """Answer with the sealed keys and the place of the store. Raises BadRequestError."""
    if keys.datastore is None:
        raise BadRequestError(ETCD_DISABLED)
    refuse_unsettled(keys.views)
    row = await keys.sealed_row()
    if row is None:
        raise BadRequestError("the keys of this cluster are not in its store: its servers run with --shared-keys files")
    await context.confirm()
    refuse_unsettled(keys.views)
    answer = {"version": 1, "configuration": keys.configuration(), "sealedKeys": row, "datastore": keys.datastore}
    return Response(200, encode_json(answer) + b"\n", (JSON,))


async def rotate_token(context: Context, keys: ServerKeys) -> Response:
    """Replace the server token. Raises BadRequestError, TooManyRequestsError, InternalServerError."""
    token, grace = _read(await context.request.body(), keys.server_ca())
    if keys.is_rotating:
        raise TooManyRequestsError("the server token is being rotated; try again later")
    keys.is_rotating = True
    try:
        await context.confirm()
        await keys.rotate(token, grace)
    except RotationRefusedError as error:
        raise BadRequestError(f"newToken: {error}") from None
    except MooringError as error:
        log.error("%s: the server token was not rotated: %s", context.audit_id, error)
        raise InternalServerError(
            f"the server token was not rotated; the operator finds the reason under Audit-Id {context.audit_id}"
        ) from None
    finally:
        keys.is_rotating = False
    return Response(200)


def _read(body: bytes, server_ca: bytes) -> tuple[Secret | None, timedelta]:
    """Return the new token, None when the server makes it, and the grace. Raises BadRequestError, which repeats neither.

    A token with the hash of a CA must name one of the CAs in `server_ca`.
    """
    given = decode_json(body)
    if not isinstance(given, dict):
        raise BadRequestError("the body is not a JSON object")
    text, grace = given.get("newToken"), given.get("grace")
    if not isinstance(text, str):
        raise BadRequestError('newToken: give the new server token, or "" for one that the server makes')
    if grace is not None and not isinstance(grace, str):
        raise BadRequestError("grace: give a duration such as 24h0m0s")
    try:
        data = text.encode("utf-8", "surrogatepass")
        token = parse_token(data) if text else None
        named = k3s.parse_token(data.strip()).ca_hash if text else ""
    except ConfigError as error:
        raise BadRequestError(f"newToken: {error}") from None
    if named and named not in accepted_hashes(server_ca):
        raise BadRequestError(
            "newToken: its CA hash is not that of this cluster; no machine could join with this token: leave the hash out"
        )
    try:
        return token, check_grace(DEFAULT_GRACE if grace is None else parse_duration(grace))
    except (ConfigError, ValueError) as error:
        reason = error if isinstance(error, ConfigError) else "give a duration such as 24h0m0s"
        raise BadRequestError(f"grace: {reason}") from None
