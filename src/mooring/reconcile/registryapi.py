"""`RegistryApi`: the registry of this process as a `ClusterApi`, without HTTP.

Rules kept here: writes pass through the registry like those of any client (law 6), as the user system:apiserver. Their audit
records name the part of the server that writes, a controller for instance. The authorizer chain that answers access reviews over
HTTP answers them here, too. Objects that cannot be read are left out: plans that need one raise (`mooring.api.view.Guarded`), and
the others go on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from mooring.api.kind import APISERVER, Change
from mooring.api.kinds import BY_PLURAL
from mooring.api.view import Views
from mooring.apimachinery.options import DeleteOptions, ListOptions, WriteOptions
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Authorize
from mooring.authz.review import subject_access_attributes
from mooring.clock import Clock
from mooring.controllers.actions import CommitPrecondition, Delete
from mooring.errors import ConflictError
from mooring.identity import API_SERVER_USER
from mooring.reconcile.clusterapi import OnEvent
from mooring.registry.cache.events import Event
from mooring.registry.cache.kindcache import Watch
from mooring.registry.store import Registry


class PlanGate:
    """Lets an update take effect while what it was planned on holds. Implements `mooring.api.kind.Gate`."""

    def __init__(self, holds: Callable[[], bool]) -> None:
        self._holds = holds

    async def prepare(self) -> None:
        """Return: a plan reads nothing but views."""

    def check(self) -> None:
        """Return when the update may take effect. Raises ConflictError, after which the key is planned again."""
        if not self._holds():
            raise ConflictError("what the update was planned on has changed")


class RegistryApi:
    """Cluster access for controllers in the same process as the registry."""

    def __init__(self, registry: Registry, authorize: Authorize, clock: Clock, writer: str = APISERVER) -> None:
        """`writer`: the part of the server that uses this, for the audit records of its writes."""
        self._writer = writer
        self._manager = "" if writer == APISERVER else writer
        """Field manager of updates: the name of a controller, as that of aggregated roles has it in Kubernetes."""
        self._registry = registry
        self._authorize = authorize
        self._clock = clock

    @property
    def views(self) -> Views:
        return self._registry.views

    async def follow(self, plurals: Sequence[str], on_event: OnEvent) -> Callable[[], Awaitable[None]]:
        async with AsyncExitStack() as watches:
            for plural in plurals:
                watches.callback((await self._watch(plural, on_event)).close)
            return watches.pop_all().aclose

    async def _watch(self, plural: str, on_event: OnEvent) -> Watch:
        def deliver(event: Event) -> None:
            on_event(plural, event.obj, event.type == "DELETED")  # the watch was opened without bookmarks

        kind = BY_PLURAL[plural]
        watch = await self._registry.reader.watch(kind, "", ListOptions(watch=True), deliver, readable_only=True)
        await watch.replay()
        return watch

    async def get(self, plural: str, namespace: str, name: str) -> Obj:
        return (await self._registry.reader.get(BY_PLURAL[plural], namespace, name)).obj

    async def create(self, plural: str, obj: Obj) -> Obj:
        namespace = obj["metadata"].get("namespace", "")
        stored = await self._registry.writer.create(BY_PLURAL[plural], namespace, obj, self._change(), WriteOptions())
        return stored.obj

    async def update(
        self, plural: str, obj: Obj, subresource: str = "", precondition: CommitPrecondition | None = None
    ) -> Obj:
        metadata = obj["metadata"]
        stored, _ = await self._registry.writer.update(
            BY_PLURAL[plural],
            metadata.get("namespace", ""),
            metadata["name"],
            obj,
            self._change(precondition),
            WriteOptions(field_manager=self._manager),
            subresource,
        )
        return stored.obj

    async def delete(self, action: Delete) -> None:
        options = DeleteOptions(
            grace_period_seconds=action.grace_seconds,
            uid=action.uid or None,
            resource_version=action.resource_version or None,
            propagation=action.propagation,
        )
        await self._registry.writer.delete(
            BY_PLURAL[action.plural], action.namespace, action.name, options, self._change(action.precondition)
        )

    async def allows(self, review: Obj) -> bool:
        return self._authorize(subject_access_attributes(review)).allowed

    def _change(self, precondition: CommitPrecondition | None = None) -> Change:
        gate = None
        if precondition is not None:
            gate = PlanGate(lambda: precondition(self._registry.views, self._clock.now()))
        return Change(API_SERVER_USER, self._clock.now(), gate=gate, writer=self._writer)
