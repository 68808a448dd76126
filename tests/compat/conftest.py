"""One server, and one namespace for each client, for all tests of this folder.

Rules kept here: `@shows("…")` names the rows of `matrix.ROWS` that a test proves. A test that takes `kubectl` runs once for every
kubectl of the machine, and is skipped with the row's reason where the program is older than the feature.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.kubectl import Kubectl, Program, programs
from tests.compat.matrix import BY_NAME
from tests.support.liveserver import LiveServer, start_server


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "shows(*rows): the rows of tests/compat/matrix.py that the test shows")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "program" not in metafunc.fixturenames:
        return
    found = [pytest.param(program, id=f"kubectl {program.version}") for program in programs()]
    none = pytest.param(None, id="no kubectl", marks=pytest.mark.skip(reason="no kubectl is installed on this machine"))
    metafunc.parametrize("program", found or [none])


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    server = start_server(tmp_path_factory.mktemp("server") / "data")
    yield server
    assert server.stop() == 0, server.log


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
def namespace(kubectl: Kubectl, spaces: dict[str, str]) -> str:
    """Create this kubectl's namespace and wait for its default ServiceAccount."""
    version = kubectl.program.version
    if version not in spaces:
        name = f"space-{len(spaces)}"
        kubectl.ok("create", "namespace", name)
        spaces[version] = name
    return spaces[version]


@pytest.fixture(scope="session")
def spaces() -> dict[str, str]:
    """Namespace of each kubectl."""
    return {}
