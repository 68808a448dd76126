"""A registry over memory storage and a manual clock: the base of every test above storage.

Rules kept here: nothing waits in real time; entropy is a counter, so that every run is the same; several rooms may share one
storage, as several server processes do.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

from mooring.api.kind import Change, Kind
from mooring.api.kinds import BY_PLURAL, KINDS
from mooring.api.view import Views
from mooring.apimachinery.options import DeleteOptions, ListOptions, WriteOptions, parse_list_options
from mooring.apimachinery.patch import merge_patch
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes, Decision, Ruling
from mooring.identity import AUTHENTICATED, MASTERS, UserInfo
from mooring.registry.admission.request import Admission
from mooring.registry.admission.table import build
from mooring.registry.cache.events import Event, Stored
from mooring.registry.cache.kindcache import Watch
from mooring.registry.reader import ListPage
from mooring.registry.store import Registry
from mooring.registry.write.deletion import DeletionRecord
from mooring.registry.write.writer import Deleted
from mooring.storage.contract import Storage
from mooring.storage.encryption.storage import EncryptedStorage
from mooring.storage.memory import MemoryStorage
from tests.support.manualclock import ManualClock, settle

ADMIN = UserInfo("admin", groups=(MASTERS, AUTHENTICATED))
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")

P = ParamSpec("P")


def counting_entropy(start: int = 0) -> Callable[[int], bytes]:
    """Return a source of bytes: different at each call, equal in each run. `start`: the number of calls that it goes on after."""
    count = start

    def entropy(size: int) -> bytes:
        nonlocal count
        count += 1
        return hashlib.shake_256(str(count).encode()).digest(size)

    return entropy


def masters_only(attributes: Attributes) -> Decision:
    """Allow every request of system:masters and no other."""
    return Decision(Ruling.ALLOW if MASTERS in attributes.user.groups else Ruling.NO_OPINION)


@dataclass(frozen=True)
class Deciding:
    """An authorizer that is one function."""

    decide: Callable[[Attributes], Decision] = masters_only
    name: str = "Test"

    def authorize(self, attributes: Attributes, views: Views) -> Decision:
        return self.decide(attributes)


def kind(plural: str) -> Kind:
    return BY_PLURAL[plural]


def secret(name: str = "", **more: Any) -> Obj:
    """Return a small Secret; `metadata` and other top-level fields can be given."""
    metadata = {**({"name": name} if name else {}), **more.pop("metadata", {})}
    return {"kind": "Secret", "apiVersion": "v1", "metadata": metadata, "data": {"key": "dmFsdWU="}, **more}


def options(**query: Any) -> ListOptions:
    """Parse list options from query parameters: `limit=2`, `labelSelector="a=b"`."""
    return parse_list_options(
        {("continue" if key == "continue_" else key): [str(value)] for key, value in query.items()}
    )


class Room:
    """One started registry, with verbs that take plurals and have defaults for user and namespace."""

    def __init__(self, storage: Storage, registry: Registry, clock: ManualClock) -> None:
        self.storage = storage
        self.registry = registry
        self.clock = clock
        self.seen: list[str] = []

    def change(self, user: UserInfo = ADMIN) -> Change:
        return Change(user, self.clock.now())

    async def create(
        self, plural: str, obj: Obj, namespace: str = "default", user: UserInfo = ADMIN, dry_run: bool = False
    ) -> Stored:
        namespace = namespace if kind(plural).resource.namespaced else ""
        return await self.registry.writer.create(
            kind(plural), namespace, obj, self.change(user), WriteOptions(dry_run=dry_run)
        )

    async def update(
        self,
        plural: str,
        obj: Obj,
        namespace: str = "default",
        subresource: str = "",
        may_create: bool = True,
        user: UserInfo = ADMIN,
        name: str = "",
        dry_run: bool = False,
    ) -> tuple[Stored, bool]:
        namespace = namespace if kind(plural).resource.namespaced else ""
        return await self.registry.writer.update(
            kind(plural),
            namespace,
            name or obj["metadata"]["name"],
            obj,
            self.change(user),
            WriteOptions(dry_run=dry_run),
            subresource,
            may_create,
        )

    async def patch(
        self,
        plural: str,
        name: str,
        patch: Obj | Callable[[Obj], Obj],
        namespace: str = "default",
        subresource: str = "",
        user: UserInfo = ADMIN,
    ) -> Stored:
        """Patch an object. `patch`: a merge patch, or a function."""
        namespace = namespace if kind(plural).resource.namespaced else ""
        apply = patch if callable(patch) else lambda obj: merge_patch(obj, patch)
        return await self.registry.writer.patch(
            kind(plural), namespace, name, apply, self.change(user), WriteOptions(), subresource
        )

    async def get(self, plural: str, name: str, namespace: str = "default", resource_version: str = "") -> Stored:
        namespace = namespace if kind(plural).resource.namespaced else ""
        return await self.registry.reader.get(kind(plural), namespace, name, resource_version)

    async def list(self, plural: str, namespace: str = "", **query: Any) -> ListPage:
        return await self.registry.reader.list(kind(plural), namespace, options(**query))

    async def names(self, plural: str, namespace: str = "", **query: Any) -> Sequence[str]:
        return [item.name for item in (await self.list(plural, namespace, **query)).items]

    async def delete(
        self,
        plural: str,
        name: str,
        namespace: str = "default",
        user: UserInfo = ADMIN,
        options: DeleteOptions | None = None,
    ) -> Deleted:
        namespace = namespace if kind(plural).resource.namespaced else ""
        return await self.registry.writer.delete(
            kind(plural), namespace, name, options or DeleteOptions(), self.change(user)
        )

    async def watch(
        self, plural: str, namespace: str = "", sink: Callable[[Event], None] | None = None, **query: Any
    ) -> Watch:
        """Start a watch; without a sink, events are appended to `seen` as `TYPE name`."""
        watch = await self.registry.reader.watch(
            kind(plural), namespace, options(watch=True, **query), sink or self.write_down
        )
        await watch.replay()
        return watch

    def write_down(self, event: Event) -> None:
        if event.stored is None:
            self.seen.append("BOOKMARK end" if event.is_initial_end else "BOOKMARK")
        else:
            self.seen.append(f"{event.type} {event.stored.name}")

    def ready(self) -> bool:
        return self.registry.cache.ready

    async def settle(self) -> None:
        """Run until every event is delivered."""
        await settle()


@asynccontextmanager
async def open_room(
    storage: Storage | None = None,
    *,
    admission: Sequence[Admission] | None = None,
    authorize: Callable[[Attributes], Decision] = masters_only,
    namespaces: Sequence[str] = NAMESPACES,
    clock: ManualClock | None = None,
    entropy: Callable[[int], bytes] | None = None,
    records: Mapping[str, DeletionRecord] | None = None,
) -> AsyncIterator[Room]:
    """Start a registry. A storage that is given must be open, and no namespace is created in it."""
    clock = clock or ManualClock()
    creates_storage = storage is None
    if storage is None:
        storage = MemoryStorage()
        await storage.open()
    options: dict[str, Any] = {"is_stale": storage.is_stale} if isinstance(storage, EncryptedStorage) else {}
    registry = Registry(
        storage,
        KINDS,
        clock,
        entropy or counting_entropy(),
        build() if admission is None else admission,
        (Deciding(authorize),),
        records,
        **options,
    )
    await registry.start()
    room = Room(storage, registry, clock)
    try:
        if creates_storage:
            for name in namespaces:
                await room.create("namespaces", {"metadata": {"name": name}})
        yield room
    finally:
        await registry.stop()
        if creates_storage:
            await storage.close()


def in_room(test: Callable[Concatenate[Room, P], Awaitable[None]]) -> Callable[P, None]:
    """Run an async test with a registry of its own as first argument."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def body() -> None:
            async with open_room() as room:
                await test(room, *args, **kwargs)

        asyncio.run(body())

    signature = inspect.signature(test)
    run.__dict__.pop("__wrapped__", None)  # pytest would see the room as a fixture
    run.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined] # read by pytest
    return run
