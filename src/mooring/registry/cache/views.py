"""Views over the watch cache: the read-only state that judges requests and controllers plan on, and its age."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from mooring.api.view import NamespacedName, Views
from mooring.apimachinery.schema import Obj
from mooring.clock import Clock
from mooring.errors import ExpiredError
from mooring.registry.cache.kindcache import KindCache

# Views over the watch cache: the read-only state that authentication, authorization, admission and controllers read (law 2).
#
# Rules kept here:
# * Reading never waits.
# * An object whose newest state cannot be read is absent: the state before may grant what was taken away since.
# * An object that a view returns is shared and must not be changed.
# * The revision of a view is that of its kind, with the number of relists above it: a key that is there again makes objects
#   readable at a revision of the store that readers have seen.
# * An object is decoded at most once for each stored revision while its decoded form stays in memory.

_REVISION_BITS = 64
_REVISION = (1 << _REVISION_BITS) - 1


class CacheView:
    """`mooring.api.view.View` of one kind."""

    __slots__ = ("_cache", "_kind")

    def __init__(self, cache: KindCache) -> None:
        self._cache = cache
        self._kind = cache.kind

    @property
    def revision(self) -> int:
        return self._cache.relists << _REVISION_BITS | self._cache.revision

    def get(self, name: str, namespace: str = "") -> Obj | None:
        key = self._kind.key(namespace, name)
        stored = self._cache.get(key)
        return stored.obj if stored is not None and key not in self._cache.unreadable else None

    def list(self, namespace: str = "") -> Iterable[Obj]:
        lost = self._cache.unreadable
        return [stored.obj for stored in self._cache.within(namespace) if not lost or stored.key not in lost]

    def changed(self, since: int) -> Iterable[tuple[str, str]] | None:
        if since >> _REVISION_BITS != self._cache.relists:
            return None
        try:
            return {(one.namespace, one.name): None for one in self._cache.window.after(since & _REVISION)}
        except ExpiredError:
            return None

    def problem(self, name: str, namespace: str = "") -> str:
        lost = self._cache.unreadable
        return lost.get(self._kind.key(namespace, name), "") if lost else ""

    def unreadable(self, namespace: str = "") -> Mapping[NamespacedName, str]:
        lost = self._cache.unreadable
        if not lost:
            return {}
        prefix = self._kind.key_prefix(namespace)
        return {self._split(key): problem for key, problem in sorted(lost.items()) if key.startswith(prefix)}

    def _split(self, key: str) -> NamespacedName:
        rest, _, name = key.rpartition("/")
        return (rest.rpartition("/")[2] if self._kind.resource.namespaced else "", name)


def cache_views(caches: Mapping[str, KindCache]) -> Views:
    """Return views of every stored kind, by plural, as a plain mapping: each request uses it a dozen times."""
    return MappingProxyType({plural: CacheView(cache) for plural, cache in caches.items()})


# Age of the views: how long ago they were known to have every write of the store.
#
# Rules kept here (docs/adr/0079-a-view-that-judges-has-a-maximum-age.md):
# * The views are confirmed by a linearizable read of the store's revision that they have reached. They are as old as the moment
#   at which that read began.
# * Each fresh read of a client confirms them, so that a busy server asks for nothing else. The check compares two numbers.

MAX_AGE_SECONDS = 1.0
"""Age of views beyond which no request is let in by them before the store was asked."""


class ViewAge:
    """Age of the views of one process."""

    __slots__ = ("_confirmed", "now")

    def __init__(self, clock: Clock) -> None:
        self.now = clock.monotonic
        self._confirmed = float("-inf")

    def confirm(self, asked: float) -> None:
        """Note that the views have every write that was acknowledged before `asked`, a moment of `now`."""
        self._confirmed = max(self._confirmed, asked)

    @property
    def is_over(self) -> bool:
        """Return true when the views are too old to judge by."""
        return self.now() - self._confirmed > MAX_AGE_SECONDS
