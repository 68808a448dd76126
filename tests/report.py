"""The end of a run of tests, for `.ci/run`: `pytest --report FILE`, and `python -m tests.report [--ended WHY] STAGES FILE…`.

Contract:
* `--report FILE` writes what failed, what needed a second try, and why tests were skipped, as JSON. A test counts once, with what
  it came to in the end.
* The command prints the times of STAGES (a file of lines `SECONDS NAME`), then what the FILEs say, at most 40 lines in all. A FILE
  that does not exist is a run that ended before its end. The last line is the sum: `N passed, N failed, N skipped`. A run that
  failed although none of its tests did counts as one failure, and so does WHY, a stage in which everything ended.
* Only the standard library and `tests.counts` are imported for the command.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.counts import counted

if TYPE_CHECKING:
    import pytest

MOST_LINES = 40
END = {2: "an interruption", 3: "an error of pytest", 4: "a wrong argument", 5: "no test at all"}
"""Exit codes of pytest without a failed test."""


@dataclass
class Report:
    """One run of pytest."""

    passed: int = 0
    exit_code: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """First line of the failure of each test."""
    second_tries: dict[str, str] = field(default_factory=dict)
    """First line of the first failure of each test that was tried again."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Number of tests by reason."""
    left_open: int = 0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--report", metavar="FILE", help="write the end of the run to a file, as JSON")


def pytest_sessionfinish(session: pytest.Session) -> None:
    from tests.leftovers import WATCH
    from tests.secondtries import first_failures

    config = session.config
    path: str | None = config.getoption("--report")
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    if path is None or terminal is None:
        return
    stats: dict[str, list[Any]] = terminal.stats
    failed = first_failures([*stats.get("failed", []), *stats.get("error", [])])
    skipped = {report.nodeid: reason_of(report) for report in stats.get("skipped", [])}
    report = Report(
        passed=len({report.nodeid for report in stats.get("passed", [])} - failed.keys() - skipped.keys()),
        exit_code=int(session.exitstatus),
        failed=failed,
        second_tries=first_failures(stats.get("rerun", [])),
        skipped=dict(Counter(skipped.values())),
        left_open=len(config.stash[WATCH].found_later),
    )
    Path(path).write_text(json.dumps(asdict(report)))


def reason_of(report: Any) -> str:
    """Return the first line of why a test was skipped."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return [*str(text).removeprefix("Skipped: ").splitlines(), ""][0]


def read(path: Path) -> Report | None:
    """Return the report of a run; None when it ended before it wrote one."""
    try:
        return Report(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def lines(stages: list[str], reports: list[Report | None]) -> list[str]:
    """Return the last lines of a run, without the sum. Details are shortened to fit, stages are not."""
    head = ["== what took how long", *stages]
    details = []
    for report in reports:
        if report is None:
            details.append("FAILED a run of tests ended before its report")
            continue
        details += [f"FAILED {test}: {line}" for test, line in report.failed.items()]
        if report.exit_code and not report.failed:
            details.append(
                f"FAILED a run in which no test failed ended with {END.get(report.exit_code, 'an error')}"
                f" (exit code {report.exit_code}): what it printed says why"
            )
    for report in reports:
        if report is None:
            continue
        if report.second_tries:
            details.append(f"{counted(len(report.second_tries), 'test')} needed a second try:")
            details += [f"  {test}: {line}" for test, line in sorted(report.second_tries.items())]
        if report.left_open:
            details.append(f"{counted(report.left_open, 'thing')} left open by earlier tests")
    skipped: Counter[str] = sum((Counter(report.skipped) for report in reports if report is not None), Counter())
    details += [f"skipped {count}: {reason}" for reason, count in sorted(skipped.items())]
    room = MOST_LINES - len(head) - 2
    if len(details) > room:
        details = [*details[: room - 1], f"... and {len(details) - room + 1} more lines above"]
    return [line.splitlines()[0][:200] for line in (*head, *details)]


def total(reports: list[Report | None]) -> str:
    """Return the sum of all runs. A run without a report counts as one failure."""
    there = [report for report in reports if report is not None]
    passed = sum(report.passed for report in there)
    failed = sum(len(report.failed) or bool(report.exit_code) for report in there) + reports.count(None)
    skipped = sum(sum(report.skipped.values()) for report in there)
    return f"{passed} passed, {failed} failed, {skipped} skipped"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.report")
    parser.add_argument("--ended", metavar="WHY", help="the stage in which the run ended, and how")
    parser.add_argument("stages", metavar="STAGES", type=Path)
    parser.add_argument("files", metavar="FILE", type=Path, nargs="*")
    options = parser.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    taken = []
    for line in options.stages.read_text(errors="backslashreplace").splitlines() if options.stages.exists() else ():
        seconds, _, name = line.partition(" ")
        known = seconds.isascii() and seconds.isdecimal()  # a full disk leaves half a line
        taken.append(f"{int(seconds) // 60:3d}:{int(seconds) % 60:02d}  {name}" if known else f"  ?:??  {line}")
    reports = [read(path) for path in options.files]
    if options.ended:
        reports.append(Report(failed={options.ended: "what it printed says why"}))
    sys.stdout.write("\n".join(["", *lines(taken, reports), total(reports)]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
