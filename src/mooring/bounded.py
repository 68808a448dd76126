"""`Bounded`: a mapping that forgets its oldest entries."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Bounded(OrderedDict[K, V]):
    """At most `most` entries. Beyond that the entry that was written longest ago is dropped.

    Reading does not renew an entry. A table of the least recently used calls `move_to_end` after each read.
    An OrderedDict drops its first entry in constant time; a dict passes over the places of all that were dropped before.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._most,), None, None, iter(self.items())  # a copy has the same limit
