"""Fencing: writes of controllers are sent only while this process may write, and only with a precondition.

Rules kept here:
* A process that was stopped for longer than the Lease does not know it when it goes on: what it planned before is not written any
  more, because the age of its last renewal is compared before every write.
* A write that was sent before the stop and arrives after it fails, because it carries what it was planned on: an update the
  resourceVersion, a deletion the uid, a creation the name. An update without one is refused here, before it is sent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Delete, Still
from mooring.errors import MooringError
from mooring.reconcile.clusterapi import ClusterApi, OnEvent


class FencedError(MooringError):
    """A write that was not sent."""


class FencedApi:
    """A `ClusterApi` whose writes need `may_write`. Reads and watches pass."""

    def __init__(self, api: ClusterApi, may_write: Callable[[], bool]) -> None:
        self._api = api
        self._may_write = may_write

    @property
    def views(self) -> Views:
        return self._api.views

    async def follow(self, plurals: Sequence[str], on_event: OnEvent) -> Callable[[], Awaitable[None]]:
        return await self._api.follow(plurals, on_event)

    async def get(self, plural: str, namespace: str, name: str) -> Obj:
        return await self._api.get(plural, namespace, name)

    async def create(self, plural: str, obj: Obj) -> Obj:
        self._check()
        return await self._api.create(plural, obj)

    async def update(self, plural: str, obj: Obj, subresource: str = "", still: Still | None = None) -> Obj:
        self._check()
        if not obj["metadata"].get("resourceVersion"):
            raise FencedError(f"an update of {plural} without a resourceVersion is not sent")
        return await self._api.update(plural, obj, subresource, still)

    async def delete(self, action: Delete) -> None:
        self._check()
        if not action.uid:
            raise FencedError(f"a deletion of {action.plural} without a uid is not sent")
        await self._api.delete(action)

    async def allows(self, review: Obj) -> bool:
        return await self._api.allows(review)

    def _check(self) -> None:
        if not self._may_write():
            raise FencedError("the controllers' Lease was not renewed in time, so that nothing is written")
