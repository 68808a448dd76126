"""The gate of the pure rooms, as part of the pytest session: `pytest --cov --cov-branch --pure-coverage`.

Rules kept here: every line and every branch of the pure rooms is run by the suite, or the session fails and says what is
missing; that is said before pytest's closing line. Asked for by an option, because part of a suite cannot pass it.
"""

from __future__ import annotations

import io
from pathlib import Path

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
    "duration",
    "plane/configuration",
    "errors",
    "clock",
)
"""The rooms and files that do no I/O, with the clock, whose formatting and parsing they use."""
ROOT = Path(__file__).parents[1]
_told = pytest.StashKey[str]()


def patterns() -> list[str]:
    """Coverage's `include` patterns of the pure rooms."""
    places = [ROOT / "src/mooring" / name for name in PURE]
    return [f"{place}/*" if place.is_dir() else f"{place}.py" for place in places]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--pure-coverage", action="store_true", help="fail unless the pure rooms are covered to the last branch"
    )


def measured() -> tuple[float, str]:
    """Percent of lines and branches run, and a table of the files that miss some."""
    data = coverage.Coverage(config_file=str(ROOT / "pyproject.toml"))
    data.load()
    table = io.StringIO()
    try:
        return data.report(include=patterns(), show_missing=True, skip_covered=True, file=table), table.getvalue()
    except coverage.CoverageException as error:
        return 0.0, f"{error}\n"


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    if not config.getoption("--pure-coverage") or hasattr(config, "workerinput") or exitstatus != pytest.ExitCode.OK:
        return
    percent, table = measured()
    if percent < 100:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        config.stash[_told] = f"{table}the pure rooms are covered to {percent:.2f} %: write the tests that are missing"
    else:
        config.stash[_told] = "the pure rooms are covered to the last line and branch"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    told = config.stash.get(_told, "")
    if told:
        terminalreporter.write_sep("=", "coverage of the pure rooms")
        terminalreporter.write_line(told)
