"""Clients that read, write and watch ConfigMaps through several servers while something breaks, and record what they were told.

Rules kept here:
* One request is one operation: nothing repeats it. A request that certainly changed nothing (not sent, 429, 503) is not recorded.
  Any other without a reply, and each that a server answered with 500 or 504, has an unknown outcome.
* A client that gets no reply goes on with the next server. A watch goes on at the next server, at its last revision.
* Clients write a bounded number of times, with a pause after each.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from functools import partial

from mooring.apimachinery.schema import Obj
from mooring.apimachinery.watchevent import BOOKMARK, WatchEvent
from mooring.client.cluster import ClusterClient
from mooring.client.http.connection import not_sent
from mooring.clock import SystemClock
from mooring.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ExpiredError,
    InternalServerError,
    MooringError,
    NotFoundError,
    RequestTimeoutError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
from tests.support.history.linearizability import judge_record
from tests.support.history.operations import ABSENT, Outcome, Record, Verb
from tests.support.history.revisions import Listing, judge_listings, judge_revisions
from tests.support.history.watches import Change, Watch, judge_watches

NAMESPACE = "faults"
REPLY_SECONDS = 4.0
"""Seconds until a client gives up a request."""
WATCH_SECONDS = 2
"""Seconds of one watch request, so that a watch of a stopped server soon goes on elsewhere."""
PAUSE = 0.01
RETRY_PAUSE = 0.05
HEALED_SECONDS = 60.0
"""Seconds after the last fault until every server must serve again."""
LAST = "last"
"""Key that is created last: a watch that has delivered it has delivered everything."""

Open = Callable[[], ClusterClient]


class SleptError(Exception):
    """A client was about to wait and repeat its request."""


class OneTry(SystemClock):
    """Clock of a client that never repeats a request."""

    async def sleep(self, seconds: float) -> None:
        raise SleptError


@dataclass(frozen=True, slots=True)
class Version:
    """Value and resourceVersion of a key, as a client read them."""

    value: str
    revision: str


@dataclass
class Workload:
    """One run. `servers` open a client of each server, with a clock of `OneTry`."""

    servers: Sequence[Open]
    moments: random.Random
    keys: int = 12
    record: Record = field(default_factory=Record)
    listings: list[Listing] = field(default_factory=list)
    watches: list[Watch] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    refusals: list[str] = field(default_factory=list)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    running: int = 0
    """Clients that have operations left."""

    async def prepare(self) -> None:
        """Create the namespace, and wait until every server serves it."""
        async with AsyncExitStack() as opened:
            clients = [await opened.enter_async_context(server()) for server in self.servers]
            await clients[0].create(
                "namespaces", {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": NAMESPACE}}
            )
            for client in clients:
                await client.get("namespaces", NAMESPACE)
            self._start = int((await clients[0].list("configmaps", NAMESPACE)).resource_version)

    async def run(self, clients: int, writes: int, watchers: int, faults: Callable[[], Awaitable[None]]) -> None:
        """Run clients of `writes` operations each beside `faults`, then read everything back from every server."""
        watching = [asyncio.create_task(self._watch(f"w{n}")) for n in range(watchers)]
        try:
            async with asyncio.TaskGroup() as group:
                for n in range(clients):
                    group.create_task(self._client(f"c{n}", writes))
                await faults()
                self.stopping.set()
            await self._read_back()
            await asyncio.gather(*watching)
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    def findings(self) -> list[str]:
        """Judge the record."""
        operations = self.record.operations
        return [
            *map(str, judge_record(self.record)),
            *judge_revisions(operations, self.listings),
            *judge_watches(self.watches, operations),
            *judge_listings(self.listings, self.watches),
            *self.refusals,
        ]

    def __str__(self) -> str:
        operations = self.record.operations
        lines = [
            f"{len(operations)} operations: {self.acknowledged} writes acknowledged, {self.unknown} without a reply, "
            f"{len(self.listings)} lists, {sum(len(watch.changes) for watch in self.watches)} events to "
            f"{len(self.watches)} watches",
            *(f"{count} times {failure}" for failure, count in self.failures.most_common(8)),
        ]
        return "\n".join(lines)

    @property
    def acknowledged(self) -> int:
        return sum(one.is_write and one.outcome is Outcome.DONE for one in self.record.operations)

    @property
    def unknown(self) -> int:
        return sum(one.outcome is Outcome.UNKNOWN for one in self.record.operations)

    def _keys(self) -> list[str]:
        return [f"k{n}" for n in range(self.keys)]

    # ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _client(self, name: str, writes: int) -> None:
        known: dict[str, Version | None] = {}
        async with AsyncExitStack() as opened:
            clients = [await opened.enter_async_context(server()) for server in self.servers]
            current = self.moments.randrange(len(clients))
            self.running += 1
            opened.callback(self._end_client)
            for n in range(writes):
                if self.stopping.is_set():
                    return
                if not await self._operate(clients[current], name, f"{name}-{n}", known):
                    current = (current + 1) % len(clients)
                    await asyncio.sleep(RETRY_PAUSE)
                elif self.moments.random() < 0.1:
                    current = self.moments.randrange(len(clients))
                await asyncio.sleep(PAUSE * 2 * self.moments.random())

    def _end_client(self) -> None:
        self.running -= 1

    async def _operate(self, client: ClusterClient, name: str, value: str, known: dict[str, Version | None]) -> bool:
        """Do one operation drawn at random. Return false when the server did not reply."""
        draw = self.moments.random()
        recent = next(reversed(known), "")
        key = recent if recent and draw < 0.8 else self.moments.choice(self._keys())
        draw = self.moments.random()
        if draw < 0.05:
            return await self._list(client, name)
        if draw < 0.15 or key not in known:
            return await self.read(client, name, key, known)
        version = known.pop(key)
        if version is None:
            return await self.write(client, name, Verb.CREATE, key, value, None, known)
        if draw < 0.3:
            return await self.write(client, name, Verb.DELETE, key, ABSENT, version, known)
        return await self.write(client, name, Verb.UPDATE, key, value, version, known)

    async def read(self, client: ClusterClient, name: str, key: str, known: dict[str, Version | None]) -> bool:
        begin = self.record.position()
        try:
            async with asyncio.timeout(REPLY_SECONDS):
                found = _version(await client.get("configmaps", key, NAMESPACE))
        except NotFoundError:
            known[key] = None
            self.record.add(name, key, Verb.READ, begin)
            return True
        except (MooringError, SleptError, TimeoutError) as error:
            self._failed(error)
            return False
        known[key] = found
        self.record.add(name, key, Verb.READ, begin, value=found.value, revision=int(found.revision))
        return True

    async def write(
        self,
        client: ClusterClient,
        name: str,
        verb: Verb,
        key: str,
        value: str,
        over: Version | None,
        known: dict[str, Version | None],
    ) -> bool:
        begin = self.record.position()
        expected = over.value if over else ""
        outcome, revision = Outcome.DONE, 0
        try:
            async with asyncio.timeout(REPLY_SECONDS):
                obj = await self._send(client, verb, key, value, over)
            if verb is not Verb.DELETE:
                known[key] = _version(obj)
                revision = int(obj["metadata"]["resourceVersion"])
        except AlreadyExistsError:
            outcome = Outcome.EXISTS
        except ConflictError:
            outcome = Outcome.CONFLICT
        except NotFoundError:
            outcome = Outcome.MISSING
        except (MooringError, SleptError, TimeoutError) as error:
            outcome = Outcome.UNKNOWN
            if self._failed(error):
                return False
        self.record.add(name, key, verb, begin, outcome, value=value, expected=expected, revision=revision)
        return outcome is not Outcome.UNKNOWN

    async def _send(self, client: ClusterClient, verb: Verb, key: str, value: str, over: Version | None) -> Obj:
        metadata = {"name": key, "namespace": NAMESPACE}
        if verb is Verb.DELETE:
            assert over is not None
            return await client.delete("configmaps", key, NAMESPACE, resource_version=over.revision)
        if over is not None:
            metadata["resourceVersion"] = over.revision
        obj = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": {"value": value}}
        send = client.create if verb is Verb.CREATE else client.update
        return await send("configmaps", obj)

    async def _list(self, client: ClusterClient, name: str) -> bool:
        begin = self.record.position()
        try:
            async with asyncio.timeout(REPLY_SECONDS):
                listed = await client.list("configmaps", NAMESPACE)
        except (MooringError, SleptError, TimeoutError) as error:
            self._failed(error)
            return False
        values = tuple((obj["metadata"]["name"], _value(obj)) for obj in listed.items if _value(obj))
        self.listings.append(
            Listing(
                client=name,
                begin=begin,
                end=self.record.position(),
                revision=int(listed.resource_version),
                values=values,
            )
        )
        return True

    def _failed(self, error: Exception) -> bool:
        """Count a failure. Return true when the request certainly changed nothing."""
        self.failures[f"{type(error).__name__}: {error}"[:160]] += 1
        transient = (InternalServerError, ServiceUnavailableError, RequestTimeoutError, TooManyRequestsError)
        if isinstance(error, ApiError) and not isinstance(error, transient):
            self.refusals.append(f"refused with {error.reason}: {error}")
        answer, cause = error.__context__ if isinstance(error, SleptError) else error, error.__cause__
        refused = isinstance(answer, TooManyRequestsError | ServiceUnavailableError)
        return refused or (isinstance(cause, Exception) and not_sent(cause))

    # ── the watches, and the end ─────────────────────────────────────────────────────────────────────────────────

    async def _watch(self, name: str) -> None:
        watch = Watch(name, self._start, through=self._start)
        self.watches.append(watch)
        async with AsyncExitStack() as opened:
            clients = [await opened.enter_async_context(server()) for server in self.servers]
            turn = self.moments.randrange(len(clients))
            while True:
                turn += 1
                with suppress(TimeoutError):
                    client = clients[turn % len(clients)]
                    try:
                        async with asyncio.timeout(WATCH_SECONDS + 1):
                            if await self._follow(client, watch):
                                return
                        continue
                    except ExpiredError:
                        # a server that was started again may know no older changes, as in Kubernetes
                        if await self._list(client, name):
                            listed = self.listings[-1]
                            if (LAST, LAST) in listed.values:
                                return
                            watch = Watch(name, listed.revision, listed.values, through=listed.revision)
                            self.watches.append(watch)
                        continue
                    except (MooringError, SleptError) as error:
                        self._failed(error)
                await asyncio.sleep(RETRY_PAUSE)

    async def _follow(self, client: ClusterClient, watch: Watch) -> bool:
        """Add events until the request ends; return true when the last key was delivered."""
        events = client.watch("configmaps", NAMESPACE, resource_version=str(watch.through), seconds=WATCH_SECONDS)
        async with aclosing(events):
            async for event in events:
                if event.type == BOOKMARK:
                    watch.through = max(watch.through, int(event.object["metadata"]["resourceVersion"]))
                    continue
                if (change := _change(event)) is not None:
                    watch.add(change)
                if event.object["metadata"]["name"] == LAST:
                    return True
        return False

    async def _read_back(self) -> None:
        """Read every key from every server, and create the last key."""
        async with AsyncExitStack() as opened:
            clients = [await opened.enter_async_context(server()) for server in self.servers]
            for n, client in enumerate(clients):
                name = f"end{n}"
                await self._until_told(partial(self._list, client, name))
                for key in self._keys():
                    await self._until_told(partial(self.read, client, name, key, {}))
            await self._until_told(partial(self.write, clients[0], "end", Verb.CREATE, LAST, LAST, None, {}))

    async def _until_told(self, operate: Callable[[], Awaitable[bool]]) -> None:
        deadline = asyncio.get_running_loop().time() + HEALED_SECONDS
        while not await operate():
            assert asyncio.get_running_loop().time() < deadline, self.failures
            await asyncio.sleep(RETRY_PAUSE)


def _value(obj: Obj) -> str:
    """Return the value that a client wrote; "" for an object of another kind, such as the published CA."""
    value: str = (obj.get("data") or {}).get("value", "")
    return value


def _version(obj: Obj) -> Version:
    return Version(_value(obj), obj["metadata"]["resourceVersion"])


def _change(event: WatchEvent) -> Change | None:
    metadata, value = event.object["metadata"], _value(event.object)
    if not value:
        return None
    return Change(int(metadata["resourceVersion"]), metadata["name"], value, event.type == "DELETED")
