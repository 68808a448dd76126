"""Settings of every test, and `live_server`, a whole server process shared by a session's tests.

Rules kept here: no fixture applies to a test that does not name it. Hypothesis sets no deadline, because machines of continuous
integration stall; there its examples are the same in each run, so that a failure comes from the change.
HYPOTHESIS_PROFILE=thorough makes more examples. Programs that tests start receive SIGINT, also where a shell that runs the tests in
the background ignores it.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

pytest_plugins = [
    "tests.support.liveserver",
    "tests.tworuns",
    "tests.ramdisk",
    "tests.purecoverage",
    "tests.sharedrewriting",
    "tests.leftovers",
    "tests.secondtries",
    "tests.report",
]

ROOT = Path(__file__).parent
_STALLS = (HealthCheck.too_slow,)
# Hypothesis' own choice of a folder ends the test, by a warning, in a clone that cannot be written
_FAILED_BEFORE = (
    DirectoryBasedExampleDatabase(ROOT.parent / ".hypothesis/examples") if os.access(ROOT.parent, os.W_OK) else None
)
settings.register_profile(
    "developer", deadline=None, max_examples=20, suppress_health_check=_STALLS, database=_FAILED_BEFORE
)
settings.register_profile(
    "ci", parent=settings.get_profile("developer"), max_examples=50, derandomize=True, database=None
)
settings.register_profile("thorough", parent=settings.get_profile("developer"), max_examples=2000)
BUILD = os.environ.get("CI", "") not in ("", "0", "false")
"""Whether this is continuous integration, as the Makefile decides it."""
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if BUILD else "developer"))

for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):  # the suite talks to this machine alone
    for variable in (name, name.upper()):
        os.environ.pop(variable, None)

# a context loads all roots of the machine, more than a hundred in 17 ms; the key of this one root was deleted
os.environ["SSL_CERT_FILE"] = str(ROOT / "support/machineroots.pem")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


GO_FIXTURES = frozenset({"kubectl", "program"})
"""Fixtures that hand a test kubectl. Go asks the kernel for the time, past a preloaded libfaketime (tests/steady.py)."""
GO_FOLDER = "kubernetes"
"""Folder whose tests run kube-apiserver and kubectl."""


def pytest_xdist_auto_num_workers() -> int:
    """Return two workers for each processor: tests wait for processes and clocks for a third of the time."""
    return 2 * (os.cpu_count() or 1)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what cannot run on another date."""
    folder = item.path.relative_to(ROOT).parts[0]
    if folder == GO_FOLDER or GO_FIXTURES.intersection(getattr(item, "fixturenames", ())):
        item.add_marker("client")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected, and keep these 22 000 out of every full collection to come."""
    gc.disable()
    try:
        result = yield
        gc.collect()
        gc.freeze()
        return result
    finally:
        gc.enable()
