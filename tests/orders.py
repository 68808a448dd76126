"""Several orders in one session: `pytest --orders 3` runs live tests three times, each time in another order, and the others once.

Rules kept here:
* A table is a test with parameters. Each order has its share of the rows of a table, so that every test runs in each order, and
  every row at least once. Sweeps (mark `sweep`) try every point of a fixed sequence, and run once.
* One session is quicker than one for each order: every worker collects the tests once, which takes it 15 s of a processor, programs
  that a session starts are started once, and no worker waits for the longest test of each order.
* A worker may run a test in two orders: what the tests of a session share, such as a server, gives a test that runs again another
  (`tests.support.liveserver.SharedServers`).
* The orders follow from pytest-randomly's seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from random import Random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--orders", type=int, default=1, metavar="N", help="run the live tests N times, each time in another order"
    )


def shared(names: Iterable[str], number: int, shares: int) -> set[str]:
    """Return the names of the tests that run in a share, which is counted from 1. Names are ids of pytest."""
    tables: dict[str, list[str]] = {}
    for name in sorted(names):
        tables.setdefault(name.partition("[")[0], []).append(name)
    kept: set[str] = set()
    for rows in tables.values():
        step = min(shares, len(rows))
        kept.update(rows[(number - 1) % step :: step])
    return kept


def shuffled(tests: Sequence[pytest.Item], seed: str) -> list[pytest.Item]:
    """Return the tests with their files in another order, and the tests of each file as well."""
    random = Random(seed)
    files = [list(group) for _, group in groupby(tests, key=lambda test: test.path)]
    random.shuffle(files)
    for file in files:
        random.shuffle(file)
    return [test for file in files for test in file]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Repeat tests once pytest-randomly has made the first order, and before tests are dealt to the workers."""
    orders: int = config.getoption("--orders")
    if orders < 2:
        return
    repeated = [item for item in items if item.get_closest_marker("live") and not item.get_closest_marker("sweep")]
    names = [item.nodeid for item in repeated]
    first = shared(names, 1, orders)
    once = {item.nodeid for item in items}.difference(names)
    ordered = [item for item in items if item.nodeid in first or item.nodeid in once]
    for number in range(2, orders + 1):
        kept = shared(names, number, orders)
        seed = f"{config.getoption('randomly_seed', None)} {number}"
        ordered += shuffled([item for item in repeated if item.nodeid in kept], seed)
    items[:] = ordered
