"""The commit of a write that a client requested: its credential is judged once more, on views of now.

Rules kept here:
* `check` runs directly before the store is called, with no `await` in between.
* A write that grants a right, or ends one, first waits for views as fresh as a linearizable read: a revocation that any server has
  acknowledged is then seen. Where that takes too long the write is refused, and nothing is stored.
* A right that admission asked for, such as that to approve for a signer, is judged once more, too, where a view has changed since.
* A write of the server itself has no credential and passes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from mooring.api.kind import Change, Kind
from mooring.errors import Details, ServiceUnavailableError
from mooring.registry.admission.request import Admission, AdmissionRequest
from mooring.registry.cache.watchcache import WatchCache

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


@dataclass(frozen=True, slots=True)
class Admitted:
    """A write that admission let pass. `judges`: the plugins that asked for rights. `revision`: that of the views by then."""

    request: AdmissionRequest
    judges: Sequence[Admission]
    cache: WatchCache
    revision: int

    def check(self) -> None:
        """Return when the rights that admission asked for are still there. Raises ApiError."""
        if self.cache.revision != self.revision:
            for plugin in self.judges:
                plugin.admit(self.request)


def check(change: Change, admitted: Admitted | None = None) -> None:
    """Return when the write may take effect now. Raises ApiError. `admitted`: None for a write without admission."""
    if change.gate is None:
        return
    change.gate.check()
    if admitted is not None:
        admitted.check()
