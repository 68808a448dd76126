"""The order of a session: every worker begins with long tests, so that the session ends with short ones.

Rules kept here: pytest-xdist gives each worker one piece of the order, and lets workers without tests take some from the end of
another's. Folders of long tests are therefore dealt to the pieces, and stand at their beginning. Otherwise the order is that of
pytest-randomly's seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import pytest

from tests.replay import replayed

T = TypeVar("T")
FOLDERS = ("scenarios", "crash", "faults", "attack", "promises")
"""Folders of the longest tests."""
ROOT = Path(__file__).parent


def dealt(long: list[T], short: list[T], workers: int) -> list[T]:
    """Return all tests in pieces for so many workers, each of which begins with its share of the long ones."""
    left = len(long) + len(short)
    rest = iter(short)
    order: list[T] = []
    for worker in range(workers):
        size = left // (workers - worker)
        left -= size
        piece = long[worker::workers]
        order += piece
        order += (test for _, test in zip(range(size - len(piece)), rest, strict=False))
    return [*order, *rest]


def workers_of(config: pytest.Config) -> int:
    """Return the number of workers of the session, or of the one that is replayed."""
    given: dict[str, int] = getattr(config, "workerinput", {})
    return int(given.get("workercount") or replayed(config).get("workers") or 1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    long = [item for item in items if item.path.relative_to(ROOT).parts[0] in FOLDERS]
    short = [item for item in items if item.path.relative_to(ROOT).parts[0] not in FOLDERS]
    items[:] = dealt(long, short, workers_of(config))
