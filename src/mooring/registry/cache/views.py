"""Views over the watch cache: the read-only state that authentication, authorization, admission and controllers read (law 2).

Rules kept here:
* Reading never waits.
* An object that a view returns is shared and must not be changed.
* An object is decoded at most once for each stored revision while its decoded form stays in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.errors import ExpiredError
from mooring.registry.cache.kindcache import KindCache


class CacheView:
    """`mooring.api.view.View` of one kind."""

    __slots__ = ("_cache", "_kind")

    def __init__(self, cache: KindCache) -> None:
        self._cache = cache
        self._kind = cache.kind

    @property
    def revision(self) -> int:
        return self._cache.revision

    def get(self, name: str, namespace: str = "") -> Obj | None:
        stored = self._cache.get(self._kind.key(namespace, name))
        return stored.obj if stored is not None else None

    def list(self, namespace: str = "") -> Iterable[Obj]:
        return [stored.obj for stored in self._cache.within(namespace)]

    def changed(self, since: int) -> Iterable[tuple[str, str]] | None:
        try:
            return {(one.namespace, one.name): None for one in self._cache.window.after(since)}
        except ExpiredError:
            return None


def cache_views(caches: Mapping[str, KindCache]) -> Views:
    """Return views of every stored kind, by plural, as a plain mapping: each request uses it a dozen times."""
    return MappingProxyType({plural: CacheView(cache) for plural, cache in caches.items()})
