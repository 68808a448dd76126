"""The commit of a write that a client requested: its credential is judged once more, on views of now.

Rules kept here:
* `check` runs directly before the store is called, with no `await` in between.
* A write that grants a right, or ends one, first waits for views as fresh as a linearizable read: a revocation that any server has
  acknowledged is then seen. Where that takes too long the write is refused, and nothing is stored.
* A write of the server itself has no credential and passes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from mooring.api.kind import Change, Kind
from mooring.errors import Details, ServiceUnavailableError

GRANTING_GROUPS = frozenset({"rbac.authorization.k8s.io", "certificates.k8s.io", "mooring.dev"})
"""Groups whose objects give rights, certificates or membership, or end them."""
GRANTING_PLURALS = frozenset({"secrets", "serviceaccounts", "nodes"})
"""Further kinds whose objects are credentials, or end one when they are deleted."""
BEHIND = "this server has not read the newest writes of the store yet; try again"


def grants(kind: Kind) -> bool:
    """Return true when objects of the kind give a right, or end one."""
    return kind.resource.group in GRANTING_GROUPS or (
        not kind.resource.group and kind.resource.plural in GRANTING_PLURALS
    )


async def prepare(kind: Kind, change: Change, fresh: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what `check` needs. Raises ApiError when the write may not take effect."""
    if change.gate is None:
        return
    await change.gate.prepare()
    if grants(kind) and not await fresh():
        raise ServiceUnavailableError(BEHIND, Details(retry_after=1))


def check(change: Change) -> None:
    """Return when the write may take effect now. Raises ApiError."""
    if change.gate is not None:
        change.gate.check()
