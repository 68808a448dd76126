"""The matrix and the tests agree: each row has tests, and each test names its rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.compat import conftest
from tests.compat.conftest import releases_for
from tests.compat.kubectl import Program
from tests.compat.matrix import (
    ANSIBLE,
    AREAS,
    BY_NAME,
    CLIENTS,
    HELM,
    KUBECTL,
    LIGHTKUBE,
    NODE,
    OPENSSL,
    PYTHON,
    ROWS,
    Row,
    cell,
    shown,
    table,
)

HERE = Path(__file__).parent
TESTS = {
    "kubectl": (
        "test_kubectl_objects.py",
        "test_kubectl_serverside.py",
        "test_kubectl_services.py",
        "test_kubectl_access.py",
        "test_kubectl_events.py",
        "test_kubectl_reviews.py",
        "test_kubectl_tokens.py",
    ),
    PYTHON: ("test_python_kubernetes.py",),
    LIGHTKUBE: ("test_lightkube.py",),
    OPENSSL: ("test_openssl.py",),
    HELM: ("test_helm.py",),
    NODE: ("test_clientnode.py",),
    ANSIBLE: ("test_ansible.py",),
}


def _shown(client: str) -> set[str]:
    """Rows named by the tests of one client."""
    text = "\n".join((HERE / name).read_text() for name in TESTS[client])
    called = re.findall(r"mark\.shows\(([^)]*)\)", text)
    named = {what for call in called for what in re.findall(r'"([^"]+)"', call)}
    return named | ({re.findall(r'^WHAT = "(.+)"$', text, re.M)[0]} if "shows(WHAT)" in text else set())


def test_every_row_has_a_name_of_its_own() -> None:
    assert len(BY_NAME) == len(ROWS)


@pytest.mark.parametrize("client", [PYTHON, LIGHTKUBE, OPENSSL, HELM, NODE, ANSIBLE])
def test_every_row_of_a_library_has_a_test(client: str) -> None:
    assert _shown(client) == {row.what for row in ROWS if client in row.others}


def test_every_row_of_kubectl_has_a_test() -> None:
    assert _shown("kubectl") == {row.what for row in ROWS if row.kubectl is not None}


def test_every_release_shows_something_of_each_area() -> None:
    text = "\n".join((HERE / name).read_text() for name in TESTS["kubectl"])
    calls = re.findall(r"^@pytest\.mark\.every_release\n@pytest\.mark\.shows\(([^)]*)\)", text, re.M)
    named = {what for call in calls for what in re.findall(r'"([^"]+)"', call)}
    assert {BY_NAME[what].area for what in named} == set(AREAS)


@pytest.mark.parametrize(
    ("shows", "every_release", "used"),
    [
        pytest.param((), False, ["1.20", "1.33"], id="the oldest and the newest"),
        pytest.param(("create token",), False, ["1.27", "1.33"], id="the oldest that has the feature"),
        pytest.param(("describe", "create token"), False, ["1.27", "1.33"], id="that has both features"),
        pytest.param((), True, ["1.20", "1.27", "1.30", "1.33"], id="every one, for a marked test"),
    ],
)
def test_releases_that_run_a_test(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    shows: tuple[str, ...],
    every_release: bool,
    used: list[str],
) -> None:
    monkeypatch.setattr(conftest, "EVERY_KUBECTL", False)
    installed = [Program(HERE, f"{release}.0") for release in ("1.20", "1.27", "1.30", "1.33")]
    request.node.add_marker(pytest.mark.shows(*shows))
    if every_release:
        request.node.add_marker(pytest.mark.every_release)
    found = releases_for(request.node, installed)
    assert [f"{one.release[0]}.{one.release[1]}" for one in found] == used
    assert releases_for(request.node, installed[:1]) == installed[:1]
    assert releases_for(request.node, []) == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_every_feature_that_is_missing_has_a_reason(row: Row) -> None:
    cells = [cell(row, f"kubectl {release}") for release in KUBECTL]
    assert cells[-1].works or row.kubectl is None
    assert all(one.works or one.why for one in cells) or row.kubectl is None
    assert bool(row.why) is any(not one.works for one in cells) or row.kubectl is None
    assert set(row.others) <= set(CLIENTS)


def test_the_table_is_complete() -> None:
    assert list(table()) == [row.what for row in ROWS]
    assert all(list(cells) == list(CLIENTS) for cells in table().values())
    whoami = table()["auth whoami"]
    assert not whoami["kubectl 1.20"].works
    assert "came with 1.27" in whoami["kubectl 1.20"].why
    assert whoami["kubectl 1.27"].works
    assert not table()["join: trust cluster-info by token, ask for a certificate, use it"]["kubectl 1.33"].works


def test_every_thing_is_counted_once() -> None:
    newest = [shown(area, f"kubectl {KUBECTL[-1]}") for area in AREAS]
    assert all(works == of for works, of in newest)
    assert sum(of for _, of in newest) == len([row for row in ROWS if row.kubectl])
    assert shown(AREAS[2], "kubectl 1.20") == (8, 11)
    assert sum(shown(area, LIGHTKUBE)[0] for area in AREAS) == len([row for row in ROWS if LIGHTKUBE in row.others])
