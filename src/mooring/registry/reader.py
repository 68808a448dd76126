"""Read objects: get, list and watch from the watch cache, as fresh as the request requires.

Rules kept here (docs/protocol/lists.md, docs/protocol/watch.md):
* resourceVersion "" means the newest state: the store is asked for its revision (microseconds), and the cache waits until it has
  it. "0" means any cached state. N means not older than N; a future N is waited for, and then answered with 504.
* `mooring.apimachinery.options` has already refused combinations of parameters that mean nothing.
* A list with a limit and N, or with match Exact, is the state at exactly N. A compacted N is 410, also for kinds that have not
  changed since (docs/protocol/e2e-tests.md). A past state comes from memory only if the kind has not changed since.
* A continue token continues the same snapshot. Once that is compacted, the 410 carries a token that continues inconsistently.
* remainingItemCount is returned only for lists without selectors.
* The state that a watch begins with is delivered in slices, while changes wait.
* A selector filters a long list in slices and gives way to other tasks between them, over the state of one moment.
* An object that cannot be read is 500, and so is a list that would contain it: a list without it would seem to be whole.
* When the cache does not catch up in time, the store itself is read: slower, and never stale.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
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
from mooring.errors import ExpiredError, InternalServerError, NotFoundError, StorageError, StorageReadError
from mooring.registry.cache.events import Stored
from mooring.registry.cache.kindcache import KindCache, Replay, SelectionPredicate, Sink, Watch, slices
from mooring.registry.cache.watchcache import WatchCache
from mooring.storage.contract import CompactedError, FutureRevisionError, Storage

FRESH_WITHIN = 3.0
"""Seconds that a read waits for a revision which the cache has not reached: kube-apiserver's figure."""
SELECT_CHUNK = 500
"""Entries read at a time while a selector filters a snapshot: kubectl's page size."""
_KEY_END = "\0"


@dataclass(frozen=True, slots=True)
class ListPage:
    """One list, or one page of it, in key order. `remaining` is None when it is not returned."""

    items: Sequence[Stored]
    revision: int
    continue_token: str = ""
    remaining: int | None = None


class ContinueExpiredError(ExpiredError):
    """410 for a continue token whose snapshot is compacted. `continue_token` continues from the same key, inconsistently."""

    def __init__(self, continue_token: str) -> None:
        super().__init__(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list "
            "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
            "results; objects that changed since the first page may then be missing or shown in their new state.",
            continue_token=continue_token,
        )


class RegistryReader:
    """Reader of objects of every kind."""

    def __init__(self, storage: Storage, cache: WatchCache) -> None:
        self._storage = storage
        self._cache = cache

    def _cache_of(self, kind: Kind) -> KindCache:
        return self._cache.kinds[kind.resource.plural]

    async def fresh(self) -> bool:
        """Wait until the cache has every write acknowledged before this call. Return False when that takes too long."""
        age = self._cache.age
        # Taken before the question: the answer is at least as new as this moment.
        asked = age.now()
        revision = await self._storage.revision()
        if revision > self._cache.revision and not await self._cache.reach_within(revision, FRESH_WITHIN):
            return False
        age.confirm(asked)
        return True

    async def current(self, kind: Kind, namespace: str, name: str) -> Stored | None:
        """Return the newest state of one object, or None."""
        key = kind.key(namespace, name)
        if await self.fresh():
            self._check_readable(key, self._cache_of(kind).unreadable)
            return self._cache_of(kind).get(key)
        # The cache does not catch up. The store itself is slower and never stale.
        entry = await self._storage.get(key)
        try:
            return self._cache.read(entry) if entry is not None else None
        except StorageError as error:
            raise _unreadable(key, str(error)) from error

    def _check_readable(self, key: str, lost: Mapping[str, str]) -> None:
        """Raise InternalServerError for an object that cannot be read."""
        if lost and (problem := lost.get(key)) is not None:
            raise _unreadable(key, problem)

    def _check_all_readable(self, selection: SelectionPredicate) -> None:
        """Raise StorageReadError when a list would contain an object that cannot be read."""
        lost = self._cache_of(selection.kind).unreadable
        if lost:
            place = selection.key or selection.kind.key_prefix(selection.namespace)
            _refuse_unreadable(
                selection.kind,
                [
                    (key, problem)
                    for key, problem in lost.items()
                    if (key == place if selection.key else key.startswith(place))
                ],
            )

    async def get(self, kind: Kind, namespace: str, name: str, resource_version: str = "") -> Stored:
        """Return one object. Raises NotFoundError."""
        if not resource_version:
            stored = await self.current(kind, namespace, name)
        else:
            await self._wait_for(int(parse_resource_version(resource_version)))
            self._check_readable(kind.key(namespace, name), self._cache_of(kind).unreadable)
            stored = self._cache_of(kind).get(kind.key(namespace, name))
        if stored is None:
            raise NotFoundError.of(kind.resource.group, kind.resource.plural, name)
        return stored

    async def _wait_for(self, version: int) -> None:
        if not await self._cache.reach_within(version, FRESH_WITHIN):
            raise resource_version_too_large(version, self._cache.revision)

    # -- list ----------------------------------------------------------------------------------------------------

    async def list(self, kind: Kind, namespace: str, options: ListOptions) -> ListPage:
        """Return the matching objects of one kind, at one revision. Raises ExpiredError, RequestTimeoutError."""
        selection = SelectionPredicate(kind, namespace, options.label_selector, options.field_selector)
        if options.continue_token:
            return await self._continue(selection, options)
        version, limit = options.revision, options.limit
        if not options.resource_version:
            fresh = await self.fresh()
            return (
                await self._from_cache(selection, "", limit)
                if fresh
                else await self._from_store(selection, "", limit, 0)
            )
        if not version:
            return await self._from_cache(selection, "", 0)
        if options.exact:
            try:
                return await self._at_revision(selection, "", limit, version)
            except CompactedError as error:
                raise ExpiredError("The resourceVersion for the provided list is too old.") from error
        await self._wait_for(version)
        return await self._from_cache(selection, "", limit)

    async def _continue(self, selection: SelectionPredicate, options: ListOptions) -> ListPage:
        start, revision = decode_continue(options.continue_token)
        after = selection.kind.key_prefix(selection.namespace) + start.removesuffix(_KEY_END)
        if revision == INCONSISTENT:
            fresh = await self.fresh()
            if fresh:
                return await self._from_cache(selection, after, options.limit)
            return await self._from_store(selection, after, options.limit, 0)
        try:
            return await self._at_revision(selection, after, options.limit, revision)
        except CompactedError as error:
            # The token in the error continues from the same key, for clients that accept an inconsistent list.
            raise ContinueExpiredError(encode_continue(start, INCONSISTENT)) from error

    async def _from_cache(self, selection: SelectionPredicate, after: str, limit: int, revision: int = 0) -> ListPage:
        """List from the cache, at its revision, or at an older `revision` with the same state."""
        revision = revision or self._cache.revision
        self._check_all_readable(selection)
        cache = self._cache_of(selection.kind)
        if selection.key:
            found = cache.get(selection.key)
            matches = found is not None and selection.key > after and selection.matches(found)
            return ListPage([found] if found is not None and matches else [], revision)
        if selection.selective:
            items = await _selected(selection, cache.within(selection.namespace, after))
            count = len(items)
        else:
            count = cache.count(selection.namespace, after) if limit else 0
            items = cache.within(selection.namespace, after, limit)
        if not limit or count <= limit:
            return ListPage(items, revision)
        return self._page(selection, items[:limit], revision, count - limit)

    def _page(self, selection: SelectionPredicate, items: Sequence[Stored], revision: int, remaining: int) -> ListPage:
        start = items[-1].key.removeprefix(selection.kind.key_prefix(selection.namespace)) + _KEY_END
        return ListPage(items, revision, encode_continue(start, revision), None if selection.selective else remaining)

    async def _at_revision(self, selection: SelectionPredicate, after: str, limit: int, revision: int) -> ListPage:
        """List the state at exactly `revision`. Raises CompactedError, and RequestTimeoutError for a future one."""
        reached = await self._cache.reach_within(revision, FRESH_WITHIN)
        # Also for an unchanged kind: clients expect a continue token to expire everywhere at the same time.
        if revision < (oldest := await self._storage.compacted()):
            raise CompactedError(oldest)
        if reached and self._cache_of(selection.kind).is_state_of(revision):
            return await self._from_cache(selection, after, limit, revision)
        return await self._from_store(selection, after, limit, revision)

    async def _from_store(self, selection: SelectionPredicate, after: str, limit: int, revision: int) -> ListPage:
        """List from the store, at `revision`, 0 for the newest."""
        prefix = selection.kind.key_prefix(selection.namespace)
        chunk = max(limit, SELECT_CHUNK) if selection.selective and limit else limit
        found: list[Stored] = []
        while True:
            try:
                page = await self._storage.range(
                    prefix, after=after, limit=chunk, revision=revision, counted=not selection.selective
                )
            except FutureRevisionError as error:
                raise resource_version_too_large(revision, error.current) from error
            revision = page.revision
            _refuse_unreadable(
                selection.kind, [(one.key, problem) for one in page.entries if (problem := self._cache.problem(one))]
            )
            for place, entry in enumerate(page.entries):
                stored = self._cache.stored(entry)
                if stored is None or not selection.matches(stored):
                    continue
                found.append(stored)
                left = len(page.entries) - place - 1 + page.remaining
                if limit and len(found) == limit and (left or page.more):
                    return self._page(selection, found, revision, left)
            if not page.more:
                return ListPage(found, revision)
            after = page.entries[-1].key

    # -- watch ---------------------------------------------------------------------------------------------------

    async def watch(
        self, kind: Kind, namespace: str, options: ListOptions, sink: Sink, *, readable_only: bool = False
    ) -> Watch:
        """Subscribe. `sink` is called synchronously, in revision order, from `Watch.replay` on, which the caller awaits.

        Raises ExpiredError for a start that the window no longer holds.

        `readable_only`: leave out objects that cannot be read, for a reader that learns of them from its view.
        """
        selection = SelectionPredicate(kind, namespace, options.label_selector, options.field_selector)
        version = options.revision
        if not options.resource_version:
            if not await self.fresh():
                raise resource_version_too_large(await self._storage.revision(), self._cache.revision)
        else:
            await self._wait_for(version)
        # No `await` from here to the subscription, so that no event is missed or sent twice.
        cache = self._cache_of(kind)
        since = self._cache.revision
        replay = bool(options.send_initial_events) if version else options.send_initial_events is not False
        if replay:
            # Refused before the subscription: a state without the object would seem to be complete.
            if not readable_only:
                self._check_all_readable(selection)
            found = [cache.get(selection.key)] if selection.key else cache.within(selection.namespace)
            past = Replay(
                [one for one in found if one is not None and one.key not in cache.unreadable], options.allow_bookmarks
            )
        elif version:
            since, past = version, Replay(changes=cache.window.after(version))
        else:
            past = Replay()
        watch = Watch(cache, selection, since, sink, lambda: self._cache.revision, past)
        cache.subscribe(watch)
        return watch


def _refuse_unreadable(kind: Kind, problems: list[tuple[str, str]]) -> None:
    if problems:
        raise StorageReadError.of(kind.resource.group, kind.resource.plural, problems)


def _unreadable(key: str, problem: str) -> InternalServerError:
    return InternalServerError(f'Internal error occurred: unable to transform key "{key}": {problem}')


async def _selected(selection: SelectionPredicate, items: Sequence[Stored]) -> Sequence[Stored]:
    """Return the matching objects, giving way to other tasks between slices."""
    found: list[Stored] = []
    for place, run in enumerate(slices(items)):
        if place:
            await asyncio.sleep(0)
        found += [item for item in run if selection.matches(item)]
    return found
