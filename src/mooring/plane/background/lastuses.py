"""Records now and then that the token of a Secret was used, in a label or an annotation of the Secret.

Rules kept here (docs/protocol/service-account-tokens.md#legacy-tokens): requests never wait for this. A record is a merge patch
through the registry, of the very Secret that was used (by uid). A failed write is noted again at the next use. Writes come one
after the other. This task stands here and not with the authenticator, because it writes through the registry.
"""

from __future__ import annotations

import logging

from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.options import WriteOptions
from mooring.apimachinery.patch import merge_patch
from mooring.apimachinery.schema import Obj
from mooring.authn.lastuses import LastUse, LastUses
from mooring.clock import Clock
from mooring.errors import ConflictError, MooringError
from mooring.identity import API_SERVER_USER
from mooring.registry.store import Registry

log = logging.getLogger("mooring.authentication")

RECORD_SECONDS = 5.0
"""Records hold a day or an hour, so that a delay of seconds does not matter. Many first uses share commits."""


async def record_forever(uses: LastUses, registry: Registry, clock: Clock) -> None:
    """Write the noted uses every RECORD_SECONDS, until cancelled."""
    while True:
        await clock.sleep(RECORD_SECONDS)
        await record(uses, registry, clock)


async def record(uses: LastUses, registry: Registry, clock: Clock) -> None:
    """Write the noted uses."""
    for use in uses.take():
        try:
            await _labelled(use, registry, clock)
        except MooringError as error:
            log.warning("the last use of Secret %s/%s was not written down: %s", use.namespace, use.name, error)


async def _labelled(use: LastUse, registry: Registry, clock: Clock) -> None:
    patch = {"metadata": use.metadata}

    def apply(current: Obj) -> Obj:
        if current["metadata"].get("uid") != use.uid:
            raise ConflictError.of("", "secrets", use.name, "it is another Secret now")
        return merge_patch(current, patch)

    change = Change(API_SERVER_USER, clock.now(), writer="last-uses")
    await registry.writer.patch(BY_PLURAL["secrets"], use.namespace, use.name, apply, change, WriteOptions())
