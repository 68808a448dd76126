"""`make test` and `make test-all`: which files of tests each of them reads, in the pytest session.

Rules kept here:
* A test is a scenario by its folder or by the name of its file alone, so that the run that leaves its file out need not read it.
* A path of the command line that is not there, or a file that the run leaves out, is an error that says so: with workers pytest
  says only that no tests ran.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
SCENARIOS = frozenset({"scenarios", "compat", "conformance", "kubeadm", "kubernetes", "faults", "crash"})
"""Folders whose tests drive whole servers, real clients, faults and crashes; elsewhere the names of such files end in `_live`."""
SELECTIONS = {"scenario": True, "not scenario": False}
"""What `make test-all` and `make test` select: whether it is scenarios."""


def of_scenarios(path: Path) -> bool:
    """Return whether a file of tests, or a folder, has scenarios alone. `path`: below tests/, with the path of the clone."""
    return path.relative_to(ROOT).parts[0] in SCENARIOS or path.stem.endswith("_live")


def pytest_configure(config: pytest.Config) -> None:
    wanted = SELECTIONS.get(config.option.markexpr)
    for argument in config.args:
        path = Path(os.path.normpath(config.invocation_params.dir / argument.partition("::")[0]))
        if not path.exists():
            raise pytest.UsageError(f"file or directory not found: {argument}")
        here = path.is_file() and path.is_relative_to(ROOT)
        if wanted is not None and here and of_scenarios(path) is not wanted:
            raise pytest.UsageError(
                f"make {'test' if wanted else 'test-all'} runs the tests of {argument}, not this target"
            )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave unread the files whose every test `-m scenario` or `-m "not scenario"` leaves out: reading all takes 17 s."""
    wanted = SELECTIONS.get(config.option.markexpr)
    if wanted is None or collection_path.suffix != ".py" or ROOT not in collection_path.parents:
        return None
    return True if of_scenarios(collection_path) is not wanted else None


def pytest_itemcollected(item: pytest.Item) -> None:
    if of_scenarios(item.path):
        item.add_marker("scenario")
