"""Coverage of the rooms, in the pytest session: `pytest --cov --cov-branch --pure-coverage`, or `--room-coverage`.

Rules kept here:
* `--pure-coverage`: the suite runs every line and every branch of the pure rooms, or the session fails and prints the missing ones,
  before pytest's last line. Tests of rooms with I/O are not traced, because tracing doubles their time.
* `--room-coverage` traces these too, and prints the coverage of every room (`make coverage`).
* Tests that drive processes are never traced, because their servers run elsewhere.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import coverage
import pytest

PURE = (
    "apimachinery",
    "pki",
    "trust",
    "api",
    "authn",
    "authz",
    "controllers",
    "identity",
    "secret",
    "settings",
    "base64url",
    "observed",
    "duration",
    "controlplane/configuration",
    "errors",
    "clock",
)
"""Rooms and files without I/O, and the clock, because they use its formatting and parsing."""
OF_PROCESSES = frozenset({"attack", "compat", "conformance", "crash", "examples", "kubeadm"})
"""Folders with tests that drive processes; elsewhere the names of such files end in `_live`."""
OF_IO = frozenset({"agent", "client", "reconcile", "registry", "server", "storage"})
"""Folders with tests of rooms with I/O that reach no line of a pure room which other tests do not."""
OF_THE_TREE = frozenset({"test_docs", "test_layout", "test_redaction", "test_tables"})
"""Tests that read files, or drive processes."""
ROOT = Path(__file__).parents[1]
_SUMMARY = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--pure-coverage", action="store_true", help="fail unless the pure rooms are covered to the last branch"
    )
    parser.addoption("--room-coverage", action="store_true", help="print the coverage of every room")


def is_traced(path: Path, *, every_room: bool) -> bool:
    """Return whether the coverage of the tests of a file is measured."""
    name, folder = path.stem, path.parent.name
    return not (
        folder in OF_PROCESSES or name.endswith("_live") or name in OF_THE_TREE or (folder in OF_IO and not every_room)
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Trace or not, from this test on. A switch takes 10 ms, so that tests of one kind in a row share one."""
    config = item.config
    every_room = config.getoption("--room-coverage")
    plugin: Any = config.pluginmanager.getplugin("_cov")
    if plugin is not None and plugin.cov_controller and (every_room or config.getoption("--pure-coverage")):
        traced = is_traced(item.path, every_room=every_room)
        if traced != plugin.cov_controller.started:
            (plugin.cov_controller.resume if traced else plugin.cov_controller.pause)()
    return (yield)


def measured() -> dict[str, Any]:
    """Return coverage's JSON report by file; {} when nothing was measured."""
    data = coverage.Coverage(config_file=str(ROOT / "pyproject.toml"))
    data.load()
    with tempfile.NamedTemporaryFile() as report:
        try:
            data.json_report(outfile=report.name)
        except coverage.CoverageException:
            return {}
        files: dict[str, Any] = json.loads(Path(report.name).read_bytes())["files"]
    return {str((ROOT / name).relative_to(ROOT / "src/mooring")): found for name, found in files.items()}


def room_of(name: str) -> str:
    """Return the room of a file: `authn` for authn/chain.py, `clock` for clock.py."""
    return name.partition("/")[0].removesuffix(".py")


def missing(files: dict[str, Any]) -> list[str]:
    """Return a line for each file of a pure room with missing lines or branches."""
    return [
        f"{name}: lines {found['missing_lines']}, branches {found['missing_branches']}"
        for name, found in sorted(files.items())
        if room_of(name) in PURE and (found["missing_lines"] or found["missing_branches"])
    ]


def percentages(files: dict[str, Any]) -> str:
    """Return the percentage of covered lines and branches of each room."""
    covered, there = Counter[str](), Counter[str]()
    for name, found in files.items():
        summary = found["summary"]
        covered[room_of(name)] += summary["covered_lines"] + summary["covered_branches"]
        there[room_of(name)] += summary["num_statements"] + summary["num_branches"]
    return ", ".join(f"{room} {covered[room] / there[room]:.0%}" for room in sorted(there) if there[room])


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    gate, every_room = config.getoption("--pure-coverage"), config.getoption("--room-coverage")
    if not (gate or every_room) or hasattr(config, "workerinput") or exitstatus != pytest.ExitCode.OK:
        return
    files = measured()
    lines = [f"covered by tests within the process: {percentages(files)}"] if every_room else []
    if gate and ((gaps := missing(files)) or not files):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        lines += [*gaps, "the pure rooms are not covered whole: write the tests that are missing"]
    elif gate:
        lines.append("the pure rooms are covered to the last line and branch")
    config.stash[_SUMMARY] = lines


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if summary := config.stash.get(_SUMMARY, []):
        terminalreporter.write_sep("=", "coverage")
        for line in summary:
            terminalreporter.write_line(line)
