"""Tables run in shares: `pytest --rows 2/3` runs the second third of the rows of each table.

A table is a test with parameters. Tests without any run with every share, and of a table with fewer rows than shares each share
runs one, so that every test runs in every share, and every row at least once.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rows", metavar="N/M", help="of each table, run the N-th of M shares of its rows")


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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select before the order is made, which counts the tests."""
    share: str | None = config.getoption("--rows")
    if share is None:
        return
    number, _, shares = share.partition("/")
    if not (number.isdecimal() and shares.isdecimal() and 1 <= int(number) <= int(shares)):
        raise pytest.UsageError(f"--rows {share}: write N/M, such as 2/3 for the second third")
    kept = shared((item.nodeid for item in items), int(number), int(shares))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]
