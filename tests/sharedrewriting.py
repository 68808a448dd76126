"""Rewriting the assertions of test files once in a fresh clone, and not once in each worker, in the pytest session.

Rules kept here:
* pytest compiles each test file with its assertions rewritten: 14 s of a processor for all. Workers of pytest-xdist that collect at
  the same time would each do it. So each imports its share of the files first, and finds the others' byte code when it collects.
* What cannot be imported is left to the collection, which says why. Runs of named files import nothing first.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


UNREADY = (Exception, pytest.fail.Exception, pytest.skip.Exception)
"""Ends of an import: a mark that the folder's conftest.py adds is unknown yet, and a file may skip itself."""


def share(files: Sequence[Path], worker: int, workers: int) -> Sequence[Path]:
    """Return every file that one of so many workers imports first."""
    return files[worker::workers]


def compile_all(modules: Iterable[str]) -> None:
    """Import modules, which writes their byte code first; leave alone what cannot be imported."""
    for name in modules:
        with contextlib.suppress(*UNREADY):
            importlib.import_module(name)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    config = session.config
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    if not worker or [Path(name).resolve() for name in config.args] != [ROOT / "tests"]:
        return
    files = [
        path
        for path in sorted(ROOT.glob("tests/**/test_*.py"))
        if not config.hook.pytest_ignore_collect(collection_path=path, config=config)
    ]
    mine = share(files, int(worker["workerid"].removeprefix("gw")), worker["workercount"])
    compile_all(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in mine)
