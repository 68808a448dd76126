"""Counts the work of a computation, so that tests compare growth without a clock.

Rules kept here:
* Work is the number of lines that Python executes and of functions that it calls. It is the same in every run: no garbage is
  collected meanwhile, because callbacks of the collector (Hypothesis has one) would be counted too.
* `Word` makes the comparisons inside `in`, `index` and `==` visible, and every copy of its text: C code that walks a list calls
  its methods once for each item.
* `peak` is the memory that a computation held at most, in bytes.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

GROWTH = 2.4
"""Twice the input may take this times the work: linear, and something for sorting. A quadratic computation takes 4."""


class Word(str):
    """Text that counts as work when it is compared, hashed or written into another."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True

    def __hash__(self) -> int:
        return str.__hash__(self)

    def __format__(self, spec: str) -> str:
        return str.__format__(self, spec)

    def __add__(self, other: str) -> str:
        return str.__add__(self, other)

    def __radd__(self, other: str) -> str:
        return other.__add__(str.__str__(self))

    def __deepcopy__(self, memo: object) -> Self:
        return self


def work(compute: Callable[[], Any]) -> int:
    """Return the number of lines and calls of `compute`; an Exception that it raises is ignored."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before, collecting = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(trace)
    try:
        compute()
    except Exception:
        pass
    finally:
        sys.settrace(before)
        if collecting:
            gc.enable()
    return count


def grows_linearly(make: Callable[[int], Callable[[], Any]], size: int) -> None:
    """Assert that `make(2 * size)` takes at most `GROWTH` times the work of `make(size)`."""
    work(make(8))  # warm caches first: code compiled on first use must not count
    small, large = work(make(size)), work(make(2 * size))
    assert large <= GROWTH * small + 200, f"{size}: {small}, {2 * size}: {large}"


def peak(compute: Callable[[], Any]) -> int:
    """Return the most memory that `compute` held, in bytes."""
    tracemalloc.start()
    try:
        compute()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
