"""Serve what a holder of the server token asks about the cluster, and refuse the changes that are made in another way here.

Rules kept here (docs/protocol/k3s.md#supervisor):
* A change of keys or of the CA has its own commands, which go in steps that no machine notices. The answer to k3s's request names
  them, and nothing is changed.
* The status of encryption names keys, and shows none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from mooring.apimachinery.codec.json import encode_json
from mooring.apimachinery.schema import Obj
from mooring.errors import BadRequestError
from mooring.server.endpoints.notfound import not_found
from mooring.server.requestcontext import RequestContext
from mooring.server.transport.http import JSON, Response


async def encryption_state(context: RequestContext, status: Callable[[], Awaitable[Obj]]) -> Response:
    """Answer with the state of the encryption of Secrets."""
    return Response(200, encode_json(await status()), (JSON,))


async def encryption_change(context: RequestContext, nothing: None) -> Response:
    """Refuse a change of keys. Raises BadRequestError."""
    raise BadRequestError("keys of stored values are changed with: mooring secrets-encryption rotate, on a server")


async def ca_replacement(context: RequestContext, nothing: None) -> Response:
    """Refuse another CA. Raises BadRequestError."""
    raise BadRequestError("the CA is replaced in phases, with: mooring ca rollover start, on a server")


async def static_file(context: RequestContext, nothing: None) -> Response:
    """Answer 404: no file is served."""
    return not_found()
