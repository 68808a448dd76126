"""One server, and one namespace for each client, for all tests of this folder; another for a test that runs again.

Rules kept here:
* `@shows("…")` names the rows of `matrix.ROWS` that a test proves. A test that takes `kubectl` runs with the oldest kubectl of the
  machine that has the feature, and with the newest. It is skipped with the row's reason where none has it.
* The releases between run the tests that are marked `every_release`, at least one of each area: what a release needs of a server is
  what its neighbours need. MOORING_TEST_EVERY_KUBECTL=1 runs every test with every release.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.compat.kubectl import Kubectl, Program, programs
from tests.compat.matrix import BY_NAME
from tests.support.liveserver import LiveServer, SharedServers

EVERY_KUBECTL = bool(os.environ.get("MOORING_TEST_EVERY_KUBECTL"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "shows(*rows): the rows of tests/compat/matrix.py that the test shows")
    config.addinivalue_line("markers", "every_release: a test that every kubectl of the machine runs")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "program" not in metafunc.fixturenames:
        return
    used = releases_for(metafunc.definition, programs())
    found = [pytest.param(program, id=f"kubectl {program.version}") for program in used]
    none = pytest.param(None, id="no kubectl", marks=pytest.mark.skip(reason="no kubectl is installed on this machine"))
    metafunc.parametrize("program", found or [none])


def releases_for(test: pytest.Item | pytest.Function, installed: Sequence[Program]) -> Sequence[Program]:
    """Return the releases with which a test runs, of those that are installed, the oldest first."""
    if EVERY_KUBECTL or test.get_closest_marker("every_release"):
        return installed
    rows = [BY_NAME[what] for marker in test.iter_markers("shows") for what in marker.args]
    needed = max((row.kubectl for row in rows if row.kubectl is not None), default=(0, 0))
    able = [program for program in installed if program.release >= needed] or installed
    return list(dict.fromkeys((*able[:1], *able[-1:])))


@pytest.fixture
def server(shared_servers: SharedServers, request: pytest.FixtureRequest) -> LiveServer:
    return shared_servers.of(request.node.nodeid, "compat")


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Home directory of each kubectl in use: it holds the discovery cache."""
    return {program.version: tmp_path_factory.mktemp("home") for program in programs()}


@pytest.fixture
def kubectl(request: pytest.FixtureRequest, program: Program, server: LiveServer, homes: dict[str, Path]) -> Kubectl:
    """One kubectl with the admin's kubeconfig."""
    marker = request.node.get_closest_marker("shows")
    assert marker is not None, "say which row of the matrix this test shows"
    for what in marker.args:
        row = BY_NAME[what]
        assert row.kubectl is not None
        if program.release < row.kubectl:
            pytest.skip(row.why)
    return Kubectl(program, server.kubeconfig, homes[program.version])


@pytest.fixture
def namespace(kubectl: Kubectl, spaces: dict[tuple[Path, str], str]) -> str:
    """Create this kubectl's namespace and wait for its default ServiceAccount."""
    place = (kubectl.kubeconfig, kubectl.program.version)
    if place not in spaces:
        name = f"space-{len(spaces)}"
        kubectl.ok("create", "namespace", name)
        spaces[place] = name
    return spaces[place]


@pytest.fixture(scope="session")
def spaces() -> dict[tuple[Path, str], str]:
    """Namespace of each kubectl on each server, which its kubeconfig names."""
    return {}
