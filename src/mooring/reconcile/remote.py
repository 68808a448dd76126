"""`RemoteApi`: any Kubernetes API server as a `ClusterApi`, over HTTPS, for the same plans as in the server (law 7).

Rules kept here:
* Each followed kind has a live view, filled by a list and updated by a watch. `follow` returns once every view holds its first
  list. Of some kinds only a `Scope` is followed, so that the right to read the rest is not needed.
* A view is updated before the controllers get the event. A second list, after 410, is reported as the differences it makes, with
  deleted objects, so that no change is missed.
* Views hold objects as the server sent them; they are shared and never changed.
* Temporary errors are retried. One that all kinds meet is logged once, and again every minute.
* A refusal, such as 403, ends `follow` with its error; one that comes later ends `refused`, and the view stays as it is.
* A kind of `mooring.dev` that goes away is unreadable, not empty. kube-apiserver deletes the objects of a deleted
  CustomResourceDefinition first, and leaves its watches open for up to two minutes
  (docs/protocol/custom-resources.md#deletion-of-a-kind). So a request is approved, denied or signed only after the definition of
  each followed kind was read: it is there, is not being deleted, and is the one whose objects were listed. Views whose list or
  watch fails at that moment are stale and count as unreadable, too. Then the plan is judged again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from types import MappingProxyType
from urllib.parse import urlencode

from mooring.api.certificates.requeststate import REQUESTS
from mooring.api.customresource import API_VERSION
from mooring.api.kinds import BY_PLURAL
from mooring.api.paths import GROUP
from mooring.api.view import AllReadable, NamespacedName, View, Views, namespaced_name
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.watchevent import DELETED
from mooring.client.cluster import ClusterClient, ListResult, resource_of
from mooring.client.listwatch import follow
from mooring.client.serverversion import read_version
from mooring.controllers.actions import EVERYTHING, CommitPrecondition, Delete, Scope
from mooring.errors import (
    ApiError,
    ConflictError,
    ForbiddenError,
    MooringError,
    NotFoundError,
    UnreadableObjectError,
)
from mooring.reconcile.clusterapi import OnEvent
from mooring.trust.answertext import is_mooring

log = logging.getLogger("mooring.controllers")

LOG_SECONDS = 60.0
"""Seconds between two log lines about the same error."""
MAX_ERRORS = 64
"""Errors that are remembered as logged. Their texts come from the server."""
DEFINITIONS = f"/apis/{API_VERSION}/customresourcedefinitions"


class KindDeletedError(NotFoundError):
    """A kind that the server is deleting, or has deleted."""


class LiveView(AllReadable):
    """`mooring.api.view.View` of one kind, updated by events.

    A server that cannot read an object refuses the list, and the kind is not followed.
    """

    def __init__(self) -> None:
        self._objects: dict[NamespacedName, Obj] = {}
        self._order: list[NamespacedName] | None = []
        self._revision = 0

    @property
    def revision(self) -> int:
        """Number of changes so far: resource versions of another server need not be numbers."""
        return self._revision

    def get(self, name: str, namespace: str = "") -> Obj | None:
        return self._objects.get((namespace, name))

    def list(self, namespace: str = "") -> Iterable[Obj]:
        if self._order is None:
            self._order = sorted(self._objects)
        return [self._objects[key] for key in self._order if not namespace or key[0] == namespace]

    def changed(self, since: int) -> Iterable[NamespacedName] | None:
        return () if since == self._revision else None

    def put(self, obj: Obj) -> None:
        key = namespaced_name(obj)
        if key not in self._objects:
            self._order = None
        self._objects[key] = obj
        self._revision += 1

    def drop(self, obj: Obj) -> None:
        if self._objects.pop(namespaced_name(obj), None) is not None:
            self._order = None
            self._revision += 1

    def replace(self, objects: Sequence[Obj]) -> Sequence[tuple[Obj, bool]]:
        """Replace the content by `objects`; return the differences as (object, deleted), deleted ones first."""
        now = {namespaced_name(obj): obj for obj in objects}
        deleted = [obj for key, obj in self._objects.items() if key not in now or _uid(now[key]) != _uid(obj)]
        changed = [obj for key, obj in now.items() if _version(obj) != _version(self._objects.get(key))]
        self._objects, self._order = now, None
        self._revision += 1
        return [(obj, True) for obj in deleted] + [(obj, False) for obj in changed]


class RemoteApi:
    """Cluster access for controllers outside the cluster's server, through a client."""

    def __init__(self, client: ClusterClient, scopes: Mapping[str, Scope] = MappingProxyType({})) -> None:
        self._client = client
        self._scopes = scopes
        self._views: dict[str, LiveView] = {}
        self._refusals: asyncio.Queue[Exception] = asyncio.Queue()
        self._logged: dict[str, float] = {}
        self._definitions: dict[str, str] = {}
        """uid of the CustomResourceDefinition of each followed kind that has one."""
        self._is_mooring: bool | None = None
        self._interrupted: dict[str, str] = {}
        """Why the changes of a followed kind do not arrive at present."""

    @property
    def views(self) -> Views:
        views: Mapping[str, View] = self._views
        return views

    async def check(self, plural: str) -> None:
        """List one object of a kind. Raises the error of a server that does not serve the kind, deletes it, or refuses it."""
        await self._definition(plural)
        scope = self._scopes.get(plural, EVERYTHING)
        query = {"limit": "1"} | ({"fieldSelector": scope.field_selector} if scope.field_selector else {})
        await self._client.get_path(f"{resource_of(plural).path(scope.namespace)}?{urlencode(query)}")

    async def follow(self, plurals: Sequence[str], on_event: OnEvent) -> Callable[[], Awaitable[None]]:
        for plural in plurals:
            self._views.setdefault(plural, LiveView())
            self._definitions[plural] = await self._definition(plural)
        first = {plural: asyncio.get_running_loop().create_future() for plural in plurals}
        buffered: list[tuple[str, Obj, bool]] = []
        live = False

        def report(plural: str, obj: Obj, deleted: bool) -> None:
            if live:
                on_event(plural, obj, deleted)
            else:
                buffered.append((plural, obj, deleted))

        tasks = [asyncio.create_task(self._follow_kind(plural, report, first[plural])) for plural in plurals]

        async def stop() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        try:
            await asyncio.gather(*first.values())
        except BaseException:
            await stop()
            raise
        live = True
        for plural, obj, deleted in buffered:
            on_event(plural, obj, deleted)
        return stop

    async def refused(self) -> Exception:
        """Wait until a kind is not followed any more, and return the error."""
        return await self._refusals.get()

    async def _follow_kind(
        self, plural: str, report: Callable[[str, Obj, bool], None], first: asyncio.Future[None]
    ) -> None:
        view = self._views[plural]
        scope = self._scopes.get(plural, EVERYTHING)

        def on_failure(error: MooringError) -> None:
            self._interrupted[plural] = str(error)
            if self._is_new(str(error)):
                log.warning("following %s%s: %s; trying again", plural, scope, error)

        def on_open() -> None:
            self._interrupted.pop(plural, None)

        try:
            changes = follow(
                self._client,
                plural,
                scope.namespace,
                field_selector=scope.field_selector,
                on_failure=on_failure,
                on_open=on_open,
            )
            async with aclosing(changes):
                async for change in changes:
                    if isinstance(change, ListResult):
                        # A second list, after 410, is reported as its differences, with deleted objects, so that no
                        # change is missed.
                        for obj, deleted in view.replace(change.items):
                            report(plural, obj, deleted)
                        # `follow` returns once every view holds its first list: a plan on an empty view would be wrong.
                        if not first.done():
                            first.set_result(None)
                    elif change.type == DELETED:
                        # The view is updated before the controllers get the event: a plan must see the state after it.
                        view.drop(change.object)
                        report(plural, change.object, True)
                    else:
                        view.put(change.object)
                        report(plural, change.object, False)
        except Exception as error:
            # Also for a fault of this program: a kind that is no longer followed must not go unnoticed.
            self._interrupted[plural] = str(error)
            if first.done():
                log.error("%s%s is not followed any more: %s", plural, scope, error)
                self._refusals.put_nowait(error)
            else:
                first.set_exception(error)

    def _is_new(self, error: str) -> bool:
        """Return whether the error was not logged in the last minute, and remember it."""
        now = self._client.clock.monotonic()
        if now - self._logged.get(error, -LOG_SECONDS) < LOG_SECONDS:
            return False
        if len(self._logged) >= MAX_ERRORS:
            self._logged.clear()
        self._logged[error] = now
        return True

    async def get(self, plural: str, namespace: str, name: str) -> Obj:
        return await self._client.get(plural, name, namespace)

    async def create(self, plural: str, obj: Obj) -> Obj:
        return await self._client.create(plural, obj)

    async def update(
        self, plural: str, obj: Obj, subresource: str = "", precondition: CommitPrecondition | None = None
    ) -> Obj:
        if plural == REQUESTS:
            await self._confirm_readable()
            if precondition is not None and not precondition(self.views, self._client.clock.now()):
                raise ConflictError("what the update was planned on has changed")
        return await self._client.update(plural, obj, subresource=subresource)

    async def _confirm_readable(self) -> None:
        """Raise UnreadableObjectError unless every followed kind is served, and its changes arrive."""
        for plural, reason in self._interrupted.items():
            raise UnreadableObjectError(f"{plural} cannot be read: {reason}")
        try:
            found = await asyncio.gather(*map(self._definition, self._definitions))
            for (plural, known), uid in zip(self._definitions.items(), found, strict=True):
                if uid != known:
                    raise KindDeletedError(f"the server has deleted {plural}, and its definition was made again")
        except (NotFoundError, ForbiddenError) as error:
            self._refusals.put_nowait(error)
            raise UnreadableObjectError(str(error)) from error

    async def _definition(self, plural: str) -> str:
        """Return the uid of the definition of a kind; "" for a kind that the server has itself.

        Raises KindDeletedError for a kind that is going away, ApiError when its definition cannot be read, and PeerError.
        """
        if BY_PLURAL[plural].resource.group != GROUP or await self._has_own_kinds():
            return ""
        try:
            metadata = (await self._client.get_path(f"{DEFINITIONS}/{plural}.{GROUP}"))["metadata"]
        except NotFoundError:
            raise KindDeletedError(f"the server does not serve {plural}") from None
        if metadata.get("deletionTimestamp"):
            raise KindDeletedError(f"the server is deleting {plural}")
        return str(metadata["uid"])

    async def _has_own_kinds(self) -> bool:
        """Return whether the server is Mooring, which serves these kinds without definitions."""
        if self._is_mooring is None:
            try:
                self._is_mooring = is_mooring(await read_version(self._client))
            except ApiError:
                return False
        return self._is_mooring

    async def delete(self, action: Delete) -> None:
        await self._client.delete(
            action.plural,
            action.name,
            action.namespace,
            uid=action.uid,
            resource_version=action.resource_version,
            propagation=action.propagation,
            grace_seconds=action.grace_seconds,
        )

    async def allows(self, review: Obj) -> bool:
        answered = await self._client.create("subjectaccessreviews", review)
        return bool((answered.get("status") or {}).get("allowed"))


def _uid(obj: Obj) -> str:
    uid: str = obj["metadata"].get("uid", "")
    return uid


def _version(obj: Obj | None) -> str:
    version: str = obj["metadata"].get("resourceVersion", "") if obj else ""
    return version
