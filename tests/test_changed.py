"""A change runs the tests of its room and those that import it, and no others."""

from __future__ import annotations

from pathlib import Path

import grimp
import pytest

from tests.changed import affected, imports, module_of, room_of


def graph() -> grimp.ImportGraph:
    found = grimp.ImportGraph()
    for importer, imported in (
        ("mooring.authn.chain", "mooring.authn.verdict"),
        ("mooring.server.pipeline", "mooring.authn.chain"),
        ("mooring.cli.main", "mooring.server.pipeline"),
    ):
        for module in (importer, imported):
            found.add_module(module)
        found.add_import(importer=importer, imported=imported)
    return found


TESTS = {
    Path("tests/authn/test_table.py"): {"mooring.authn.table"},
    Path("tests/server/test_reasons.py"): {"mooring.authn.chain"},
    Path("tests/server/test_pipeline.py"): {"mooring.server.pipeline"},
    Path("tests/support/peer.py"): {"tests.support.ports"},
    Path("tests/support/ports.py"): set[str](),
    Path("tests/client/test_peer.py"): {"tests.support.peer"},
    Path("tests/test_docs.py"): set[str](),
}


@pytest.mark.parametrize(
    ("changed", "files"),
    [
        pytest.param(
            "src/mooring/authn/verdict.py",
            {"tests/authn/test_table.py", "tests/server/test_reasons.py"},
            id="its room, and who imports its room's modules that reach it",
        ),
        pytest.param("src/mooring/cli/main.py", set[str](), id="a room without tests here"),
        pytest.param("src/mooring/authn/new.py", {"tests/authn/test_table.py"}, id="a module that is new"),
        pytest.param("tests/support/ports.py", {"tests/client/test_peer.py"}, id="support that support imports"),
        pytest.param("tests/server/test_pipeline.py", {"tests/server/test_pipeline.py"}, id="a test"),
        pytest.param("docs/operate.md", {"tests/test_docs.py"}, id="a page"),
        pytest.param("tests/conftest.py", {"tests/test_docs.py"}, id="a plugin of the session"),
        pytest.param("tests/docs.py", {"tests/test_docs.py"}, id="a module with a test of its name"),
        pytest.param("tests/server/test_gone.py", set[str](), id="a test that was deleted"),
    ],
)
def test_a_change_runs_the_tests_that_it_touches(changed: str, files: set[str]) -> None:
    assert {str(path) for path in affected([Path(changed)], TESTS, graph())} == files


def test_names_of_files_and_imports() -> None:
    assert module_of(Path("src/mooring/authn/__init__.py")) == "mooring.authn"
    assert room_of("mooring.authn.chain") == "authn"
    assert room_of("mooring") == ""
    assert imports("import a.b\nfrom tests.support import peer, ports\n") == {
        "a.b", "tests.support", "tests.support.peer", "tests.support.ports",
    }  # fmt: skip
