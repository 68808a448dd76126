"""Second tries of live tests, in the pytest session.

Rules kept here:
* A test is live when its file starts processes or a server on sockets: its module imports a module of `tests.support` that does, or
  it is a scenario. The mark is set when the test is collected, and `pytest -m live` runs these.
* A live test that fails is tried again, twice at most; no other test is. Each is listed at the end with its first failure, because
  a test that needs a second try has a fault, or shows one.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import pytest

from tests.counts import counted

TRIES = 2
LIVE_SUPPORT = frozenset(
    {
        "balancer",
        "commandline",
        "deviceprovider",
        "directory",
        "discoverypeer",
        "etcd",
        "everyway",
        "faultlib",
        "forkserver",
        "http2peer",
        "kdc",
        "keystonepeer",
        "killable",
        "kmsplugin",
        "kubeapiserver",
        "kubernetespeer",
        "liveserver",
        "network",
        "nodeprovider",
        "openidprovider",
        "pagecommands",
        "peer",
        "ports",
        "servedroom",
        "serverroom",
        "servertokens",
        "standalonecontrollers",
        "storagedrivers",
        "storageprocess",
        "supervisorpeer",
        "tlspeer",
        "tokenwebhook",
        "urlresponder",
        "workerprogram",
        "workers",
        "workstation",
    }
)
"""Modules of `tests.support` that start processes, or servers on sockets."""
LIVE_FIXTURES = frozenset({"live_server", "manual_approval"})


@cache
def _is_live(module: ModuleType) -> bool:
    for value in vars(module).values():
        origin = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(origin, str) and origin.startswith("tests.support.") and origin.split(".")[2] in LIVE_SUPPORT:
            return True
    return False


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark before other plugins order the tests by their marks."""
    for item in items:
        module = getattr(item, "module", None)
        fixtures: frozenset[str] = frozenset(getattr(item, "fixturenames", ()))
        if (
            item.get_closest_marker("scenario")
            or fixtures & LIVE_FIXTURES
            or (isinstance(module, ModuleType) and _is_live(module))
        ):
            item.add_marker("live")
            item.add_marker(pytest.mark.flaky(reruns=TRIES))


_TIMER: pytest.StashKey[Any] = pytest.StashKey()


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    item.stash[_TIMER] = settings


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if getattr(item, "execution_count", 1) > 1 and _TIMER in item.stash:
        item.ihook.pytest_timeout_set_timer(item=item, settings=item.stash[_TIMER])


def first_failures(reports: list[pytest.TestReport]) -> dict[str, str]:
    """Return one line for the first failure of each test: its error, and not where a worker says that it ran."""
    lines: dict[str, str] = {}
    for report in reports:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = str(getattr(crash, "message", report.longreprtext))
        told = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("[gw")]
        errors = [line.removeprefix("E ").strip() for line in told if line.startswith("E ")]
        lines.setdefault(report.nodeid, f"{report.when}: {[*errors, *told, 'no message'][0]}")
    return lines


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports: list[pytest.TestReport] = terminalreporter.stats.get("rerun", [])
    if failures := first_failures(reports):
        terminalreporter.write_sep("=", "first failures of tests that needed a second try")
        for test, report in {report.nodeid: report for report in reversed(reports)}.items():
            terminalreporter.write_sep("_", test)
            terminalreporter.write_line(report.longreprtext)
        terminalreporter.write_sep("=", f"{counted(len(failures), 'test')} needed a second try")
        for test, line in sorted(failures.items()):
            terminalreporter.write_line(f"{test}: {line}")
