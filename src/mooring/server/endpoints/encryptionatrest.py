"""Serve GET `/mooring/v1/encryption`: which keys have encrypted how many stored values (`mooring secrets-encryption status`).

Rules kept here:
* RBAC decides which users may read it; no default role but cluster-admin allows it. It shows names of keys, and no key.
* Every stored value is read and decrypted, in slices, so that stale and unreadable ones are counted and not guessed. One report is
  made at a time in a process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from mooring.apimachinery.codec.json import encode_json
from mooring.server.requestcontext import RequestContext
from mooring.server.response.render import content_type
from mooring.server.transport.http import Response
from mooring.storage.encryption.storage import Usage


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
