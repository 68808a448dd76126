"""Reading: get, list and watch, from memory, as fresh as the caller asks.

Rules kept here (docs/protocol/lists.md, docs/protocol/watch.md):
* resourceVersion "" means the newest: the store is asked for its revision (microseconds) and the cache waits until it is there.
  "0" means anything cached. N means not older than N; a future N is waited for and then answered 504.
* Which combinations of parameters have a meaning is decided by `mooring.apimachinery.options`, before anything comes here.
* A list with a limit and N, or with match Exact, is the state at exactly N; compacted is 410. Nothing in the past is guessed: it
  comes from memory only if the kind has not changed since. What is compacted is gone for kinds that did not change, too: a token
  lives as long as elsewhere, and the e2e test of inconsistent lists (8.5 B) waits for its end.
* A continue token goes on with the same snapshot; once that is compacted, 410 hands out a token that goes on inconsistently.
* remainingItemCount is told only when no selector was given.
* A watch is set up without an await between looking at the state and subscribing, so nothing is missed or told twice. The state is
  delivered in slices afterwards; changes wait meanwhile.
* A selector looks through a long list in slices and gives way between them, over the state of one moment.
* If the cache does not catch up in time, the store itself is read: slower, never wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from mooring.api.kind import Kind
from mooring.apimachinery.options import (
    INCONSISTENT,
    ListOptions,
    decode_continue,
    encode_continue,
    parse_resource_version,
)
from mooring.apimachinery.status import resource_version_too_large
from mooring.errors import ExpiredError, NotFoundError
from mooring.registry.cache.kindcache import Due, KindCache, Sink, Watch
from mooring.registry.cache.scope import Scope
from mooring.registry.cache.stored import Stored, slices
from mooring.registry.cache.watchcache import WatchCache
from mooring.storage.contract import CompactedError, FutureRevisionError, Storage

FRESH_WITHIN = 3.0
"""Seconds a read waits for a revision the cache has not reached: kube-apiserver's figure."""
SELECT_CHUNK = 500
"""Entries fetched at a time while a selector looks through a snapshot: kubectl's own page size."""
_KEY_END = "\0"


@dataclass(frozen=True, slots=True)
class Listed:
    """One list, or one page of it, in key order. `remaining` is None when it is not told."""

    items: Sequence[Stored]
    revision: int
    continue_token: str = ""
    remaining: int | None = None


class ContinueExpiredError(ExpiredError):
    """410 for a continue token whose snapshot is gone. `continue_token` goes on from the same place, inconsistently."""

    def __init__(self, continue_token: str) -> None:
        super().__init__(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list "
            "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
            "results; objects that changed since the first page may then be missing or shown in their new state.",
            continue_token=continue_token,
        )


class Reader:
    """Answers reads for every kind."""

    def __init__(self, storage: Storage, cache: WatchCache) -> None:
        self._storage = storage
        self._cache = cache

    def _of(self, kind: Kind) -> KindCache:
        return self._cache.kinds[kind.resource.plural]

    async def fresh(self) -> bool:
        """True once the cache has every write acknowledged before this call; False when it does not get there in time."""
        revision = await self._storage.revision()
        return revision <= self._cache.revision or await self._cache.reach_within(revision, FRESH_WITHIN)

    async def current(self, kind: Kind, namespace: str, name: str) -> Stored | None:
        """The newest state of one object."""
        key = kind.key(namespace, name)
        if await self.fresh():
            return self._of(kind).get(key)
        entry = await self._storage.get(key)
        return self._cache.stored(entry) if entry is not None else None

    async def get(self, kind: Kind, namespace: str, name: str, resource_version: str = "") -> Stored:
        """One object. Raises NotFoundError."""
        if not resource_version:
            stored = await self.current(kind, namespace, name)
        else:
            await self._wait_for(int(parse_resource_version(resource_version)))
            stored = self._of(kind).get(kind.key(namespace, name))
        if stored is None:
            raise NotFoundError.of(kind.resource.group, kind.resource.plural, name)
        return stored

    async def _wait_for(self, version: int) -> None:
        if not await self._cache.reach_within(version, FRESH_WITHIN):
            raise resource_version_too_large(version, self._cache.revision)

    # -- list ----------------------------------------------------------------------------------------------------

    async def list(self, kind: Kind, namespace: str, options: ListOptions) -> Listed:
        """The matching objects of one kind, as of one revision."""
        scope = Scope(kind, namespace, options.label_selector, options.field_selector)
        if options.continue_token:
            return await self._go_on(scope, options)
        version, limit = options.revision, options.limit
        if not options.resource_version:
            fresh = await self.fresh()
            return await self._here(scope, "", limit) if fresh else await self._there(scope, "", limit, 0)
        if not version:
            return await self._here(scope, "", 0)
        if options.exact:
            try:
                return await self._at(scope, "", limit, version)
            except CompactedError as error:
                raise ExpiredError("The resourceVersion for the provided list is too old.") from error
        await self._wait_for(version)
        return await self._here(scope, "", limit)

    async def _go_on(self, scope: Scope, options: ListOptions) -> Listed:
        start, revision = decode_continue(options.continue_token)
        after = scope.kind.key_prefix(scope.namespace) + start.removesuffix(_KEY_END)
        if revision == INCONSISTENT:
            fresh = await self.fresh()
            if fresh:
                return await self._here(scope, after, options.limit)
            return await self._there(scope, after, options.limit, 0)
        try:
            return await self._at(scope, after, options.limit, revision)
        except CompactedError as error:
            raise ContinueExpiredError(encode_continue(start, INCONSISTENT)) from error

    async def _here(self, scope: Scope, after: str, limit: int, revision: int = 0) -> Listed:
        """From memory, as of this call; `revision`: an older one with the same state."""
        revision = revision or self._cache.revision
        cache = self._of(scope.kind)
        if scope.key:
            found = cache.get(scope.key)
            matches = found is not None and scope.key > after and scope.matches(found)
            return Listed([found] if found is not None and matches else [], revision)
        if scope.selective:
            items = await _selected(scope, cache.within(scope.namespace, after))
            count = len(items)
        else:
            count = cache.count(scope.namespace, after) if limit else 0
            items = cache.within(scope.namespace, after, limit)
        if not limit or count <= limit:
            return Listed(items, revision)
        return self._page(scope, items[:limit], revision, count - limit)

    def _page(self, scope: Scope, items: Sequence[Stored], revision: int, remaining: int) -> Listed:
        start = items[-1].key.removeprefix(scope.kind.key_prefix(scope.namespace)) + _KEY_END
        return Listed(items, revision, encode_continue(start, revision), None if scope.selective else remaining)

    async def _at(self, scope: Scope, after: str, limit: int, revision: int) -> Listed:
        """The state at exactly `revision`. Raises CompactedError, and RequestTimeoutError for the future."""
        reached = await self._cache.reach_within(revision, FRESH_WITHIN)
        if revision < (oldest := await self._storage.compacted()):
            raise CompactedError(oldest)
        if reached and self._of(scope.kind).is_state_of(revision):
            return await self._here(scope, after, limit, revision)
        return await self._there(scope, after, limit, revision)

    async def _there(self, scope: Scope, after: str, limit: int, revision: int) -> Listed:
        """From the store, at `revision` (0: now)."""
        prefix = scope.kind.key_prefix(scope.namespace)
        chunk = max(limit, SELECT_CHUNK) if scope.selective and limit else limit
        found: list[Stored] = []
        while True:
            try:
                page = await self._storage.range(prefix, after=after, limit=chunk, revision=revision)
            except FutureRevisionError as error:
                raise resource_version_too_large(revision, error.current) from error
            revision = page.revision
            for place, entry in enumerate(page.entries):
                stored = self._cache.stored(entry)
                if stored is None or not scope.matches(stored):
                    continue
                found.append(stored)
                left = len(page.entries) - place - 1 + page.remaining
                if limit and len(found) == limit and (left or page.more):
                    return self._page(scope, found, revision, left)
            if not page.more:
                return Listed(found, revision)
            after = page.entries[-1].key

    # -- watch ---------------------------------------------------------------------------------------------------

    async def watch(self, kind: Kind, namespace: str, options: ListOptions, sink: Sink) -> Watch:
        """Subscribe. Events reach `sink` from `Watch.replay` on. Raises ExpiredError for a forgotten start."""
        scope = Scope(kind, namespace, options.label_selector, options.field_selector)
        version = options.revision
        if not options.resource_version:
            if not await self.fresh():
                raise resource_version_too_large(await self._storage.revision(), self._cache.revision)
        else:
            await self._wait_for(version)
        # No await from here on.
        cache = self._of(kind)
        since = self._cache.revision
        replay = bool(options.send_initial_events) if version else options.send_initial_events is not False
        if replay:
            found = [cache.get(scope.key)] if scope.key else cache.within(scope.namespace)
            due = Due([stored for stored in found if stored is not None], options.allow_bookmarks)
        elif version:
            since, due = version, Due(changes=cache.window.after(version))
        else:
            due = Due()
        watch = Watch(cache, scope, since, sink, lambda: self._cache.revision, due)
        cache.subscribe(watch)
        return watch


async def _selected(scope: Scope, items: Sequence[Stored]) -> Sequence[Stored]:
    """The objects that match."""
    found: list[Stored] = []
    for place, run in enumerate(slices(items)):
        if place:
            await asyncio.sleep(0)
        found += [item for item in run if scope.matches(item)]
    return found
