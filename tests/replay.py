"""The tests that one worker ran, in their order, to run them again: `pytest --replay FILE`, `make replay FILE=…`.

Rules kept here:
* Workers of pytest-xdist take tests from each other, so that the order in which one of them runs is not the order of the session.
  A worker with a failed test hands over what it ran until then, as numbers of that order. The session prints it, and writes
  it to `.replay/`.
* The order of a session follows from its seed, its arguments and the tests that there are. A file of another tree is refused.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FOLDER = ".replay"
OUTPUT = "replay"
"""Key of what a worker of pytest-xdist sends to the controller."""


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
        found += range(int(first), int(last or first) + 1)
    return found


def fingerprint(tests: Sequence[str]) -> int:
    """Return a number that tells one order of tests from another."""
    return zlib.crc32("\n".join(tests).encode())


@dataclass
class Recording:
    """The order of a session, and what this process ran of it until its last failure."""

    tests: list[str] = field(default_factory=list)
    number_of: dict[str, int] = field(default_factory=dict)
    ran: list[int] = field(default_factory=list)
    until_failure: int = 0
    seed: int = 0
    expression: str = ""

    def document(self) -> dict[str, Any] | None:
        """Return what a file of this worker says; None when nothing failed."""
        if not self.until_failure:
            return None
        return {
            "seed": self.seed,
            "expression": self.expression,
            "tests": len(self.tests),
            "fingerprint": fingerprint(self.tests),
            "ran": ranges(self.ran[: self.until_failure]),
        }


RECORDING = pytest.StashKey[Recording]()
FOUND = pytest.StashKey[dict[str, dict[str, Any]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--replay", metavar="FILE", help="run what a worker ran, from the file that its session wrote")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RECORDING] = Recording()
    config.stash[FOUND] = {}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note the order, after every other plugin changed it; select from it with `--replay`."""
    recording = config.stash[RECORDING]
    recording.tests = [item.nodeid for item in items]
    recording.number_of = {test: number for number, test in enumerate(recording.tests)}
    recording.seed = int(config.getoption("randomly_seed", 0) or 0)
    recording.expression = config.getoption("markexpr", "")
    if file := config.getoption("--replay"):
        document = json.loads(Path(file).read_text())
        if document["fingerprint"] != fingerprint(recording.tests):
            raise pytest.UsageError(
                f"{file} is of a session with {document['tests']} tests, and here are {len(items)}, or others: "
                "check out its commit, and run it by `make replay`"
            )
        items[:] = [items[number] for number in dict.fromkeys(numbers(document["ran"]))]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        recording = item.config.stash[RECORDING]
        recording.until_failure = len(recording.ran)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    recording = item.config.stash[RECORDING]
    recording.ran.append(recording.number_of[item.nodeid])


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    document = config.stash[RECORDING].document()
    output: dict[str, object] | None = getattr(config, "workeroutput", None)
    if output is not None:
        output[OUTPUT] = document
    elif document is not None:
        config.stash[FOUND]["main"] = document


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    output: dict[str, Any] = getattr(node, "workeroutput", {})
    config: pytest.Config = getattr(node, "config")  # noqa: B009 - the type of a node is not a public name
    gateway: Any = getattr(node, "gateway")  # noqa: B009 - as above
    if output.get(OUTPUT):
        config.stash[FOUND][str(gateway.id)] = output[OUTPUT]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found = config.stash[FOUND]
    if not found or config.getoption("--replay"):
        return
    folder = config.rootpath / FOLDER
    folder.mkdir(exist_ok=True)
    terminalreporter.write_sep("=", "what the workers with a failed test ran")
    for worker, document in sorted(found.items()):
        text = json.dumps(document)
        (folder / f"{worker}.json").write_text(text + "\n")
        terminalreporter.write_line(f"make replay FILE={FOLDER}/{worker}.json  # {text}")


def main() -> int:
    """Run the tests of a file in one process, in the order of the worker."""
    file = Path(sys.argv[1])
    document = json.loads(file.read_text())
    selection = ["-m", document["expression"]] if document["expression"] else []
    return pytest.main([f"--randomly-seed={document['seed']}", *selection, "--replay", str(file), *sys.argv[2:]])


if __name__ == "__main__":
    sys.exit(main())
