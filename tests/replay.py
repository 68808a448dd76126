"""The tests that one worker ran, in their order, to run them again: `pytest --replay FILE`, `make replay FILE=…`.

Rules kept here:
* Workers of pytest-xdist take tests from each other, so that the order in which one of them runs is not the order of the session.
  For each worker with a failed test, or that crashed, the session prints what it ran until then, as numbers of that order, and
  writes it to `.replay/`.
* The order of a session follows from its seed, its selection, the tests that there are, and a few variables of the environment. A
  file of another tree is refused. A file of an earlier session stays.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

FOLDER = ".replay"
ENVIRONMENT = ("CI", "HYPOTHESIS_PROFILE", "MOORING_FAULT_SEEDS")
"""Variables that decide which tests there are, or which examples a property has."""
MOST = 10_000_000
"""No session has so many tests."""


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers in their order, shortened where they count up: `0-4,9,7-8`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)


def numbers(text: str) -> list[int]:
    """Return the numbers of `ranges`. Raises ValueError."""
    found: list[int] = []
    for run in text.split(","):
        first, _, last = run.partition("-")
        if int(last or first) > MOST:
            raise ValueError("more tests than there can be")
        found += range(int(first), int(last or first) + 1)
    return found


def fingerprint(tests: Sequence[str]) -> int:
    """Return a number that tells one order of tests from another."""
    return zlib.crc32("\n".join(tests).encode())


def replayed(config: pytest.Config) -> dict[str, Any]:
    """Return what the file of `--replay` says; {} without one."""
    file: str | None = config.getoption("--replay", None)
    return json.loads(Path(file).read_text()) if file else {}


@dataclass
class Worker:
    """What one worker ran."""

    tests: list[str] = field(default_factory=list)
    until_failure: int = 0

    def note(self, test: str, *, failed: bool) -> None:
        if not self.tests or self.tests[-1] != test:
            self.tests.append(test)
        if failed:
            self.until_failure = len(self.tests)


class Recording:
    """The order of a session, and what each of its workers ran."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.order: list[str] = []
        self.workers: dict[str, Worker] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:  # the controller of workers collects nothing itself
            self.order = [item.nodeid for item in session.items]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self.order = list(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        node: Any = getattr(report, "node", None)
        name = str(node.gateway.id) if node is not None else "main"
        self.workers.setdefault(name, Worker()).note(report.nodeid, failed=report.failed or report.outcome == "rerun")  # type: ignore[comparison-overlap] # of pytest-rerunfailures

    def documents(self) -> dict[str, dict[str, Any]]:
        """Return the file of each worker with a failed test."""
        option = self.config.option
        number_of = {test: number for number, test in enumerate(self.order)}
        session = {
            "seed": getattr(option, "randomly_seed", None),
            "workers": len(getattr(option, "tx", None) or ()) or 1,
            "selection": [
                *(("-m", option.markexpr) if option.markexpr else ()),
                *(("-k", option.keyword) if option.keyword else ()),
                *(("--orders", str(orders)) if (orders := self.config.getoption("--orders", 1)) > 1 else ()),
            ],
            "paths": [str(path) for path in self.config.args],
            "tests": len(self.order),
            "fingerprint": fingerprint(self.order),
            "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        }
        return {
            name: session
            | {"ran": ranges(number_of[test] for test in worker.tests[: worker.until_failure] if test in number_of)}
            for name, worker in sorted(self.workers.items())
            if worker.until_failure
        }

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        documents = self.documents()
        if not documents or self.config.getoption("--replay"):
            return
        folder = self.config.rootpath / FOLDER
        terminalreporter.write_sep("=", "what the workers with a failed test ran")
        for name, document in documents.items():
            text = json.dumps(document)
            try:
                terminalreporter.write_line(f"make replay FILE={FOLDER}/{_written(folder, name, text)}  # {text}")
            except OSError as error:
                terminalreporter.write_line(f"no file in {folder} ({error.strerror}): to replay, write one of {text}")


def _written(folder: Path, name: str, text: str) -> str:
    """Write a text to a file that is new, and return the file's name. Raises OSError."""
    folder.mkdir(exist_ok=True)
    for number in count(1):
        file = folder / f"{name}{f'-{number}' * (number > 1)}.json"
        with contextlib.suppress(FileExistsError), file.open("x") as opened:
            opened.write(text + "\n")
            break
    return file.name


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--replay", metavar="FILE", help="run what a worker ran, from the file that its session wrote")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recording(config), "recording of workers")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select with `--replay`, after every other plugin made the order."""
    document = replayed(config)
    if not document:
        return
    if document["fingerprint"] != fingerprint([item.nodeid for item in items]):
        raise pytest.UsageError(
            f"{config.getoption('--replay')} is of a session with {document['tests']} tests, and here are {len(items)}, "
            "or others: check out its commit, and run it by `make replay`"
        )
    items[:] = [items[number] for number in dict.fromkeys(numbers(document["ran"]))]


def arguments(file: str) -> tuple[list[str], dict[str, str]]:
    """Return the arguments of pytest and the variables for a file. Raises OSError, and ValueError for what is no such file."""
    content = Path(file).read_bytes()
    try:
        document = json.loads(content)
        environment = document.get("environment", {})
        words = [*document["selection"], *document["paths"], *environment.values()]
        if (
            not isinstance(document["fingerprint"], int)
            or not numbers(document["ran"])
            or not all(isinstance(word, str) for word in words)
            or not set(environment).issubset(ENVIRONMENT)
        ):
            raise TypeError
        order = ["-p", "no:randomly"] if document["seed"] is None else [f"--randomly-seed={document['seed']}"]
        return [*order, *document["selection"], f"--replay={file}", *document["paths"]], environment
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ValueError("not a file that a session wrote") from None


def main() -> int:
    """Run the tests of a file in one process, in the order of the worker."""
    if len(sys.argv) < 2:
        sys.stderr.write("error: which file? make replay FILE=.replay/gw0.json\n")
        return 2
    try:
        found, environment = arguments(os.path.expanduser(sys.argv[1]))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"error: {sys.argv[1]}: {getattr(error, 'strerror', None) or error}\n")
        return 2
    for name in ENVIRONMENT:
        os.environ.pop(name, None)
    os.environ.update(environment)
    return pytest.main([*found, *sys.argv[2:]])


if __name__ == "__main__":
    sys.exit(main())
