"""A change runs the tests of its room and those that import it, and no others."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import grimp
import pytest
from grimp.exceptions import SourceSyntaxError

from tests.changed import affected, changed_files, exit_code, imports, main, module_of, room_of


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


TEXTS = {
    Path("tests/authn/test_table.py"): "import mooring.authn.table",
    Path("tests/server/test_reasons.py"): "import mooring.authn.chain",
    Path("tests/server/test_pipeline.py"): "import mooring.server.pipeline",
    Path("tests/server/test_start.py"): "run(['-m', 'tests.support.program'])",
    Path("tests/support/peer.py"): "import tests.support.ports",
    Path("tests/support/ports.py"): "",
    Path("tests/support/program.py"): "",
    Path("tests/support/nodeprovider.py"): 'FOLDER = Path(__file__).parent / "node"',
    Path("tests/client/test_peer.py"): "import tests.support.peer",
    Path("tests/client/test_node.py"): "import tests.support.nodeprovider",
    Path("tests/examples/test_tokens.py"): "from examples.tokens import Tokens",
    Path("tests/pki/conftest.py"): "",
    Path("tests/pki/test_keys.py"): 'VECTORS / "keys.json"',
    Path("tests/pki/test_names.py"): "",
    Path("tests/test_docs.py"): "",
    Path("tests/promises/test_threats.py"): 'FOLDER = ROOT / "docs/threats"',
    Path("tests/server/test_library.py"): 'ROOT / "pyproject.toml"',
}
TOP = "tests/test_docs.py"


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
        pytest.param("tests/sharedrewriting.py", {"tests/test_docs.py"}, id="a plugin of workers"),
        pytest.param(
            "src/mooring/authn/fields.txt", {"tests/test_docs.py", "tests/authn/test_table.py"}, id="data of a room"
        ),
        pytest.param("tests/docs.py", {"tests/test_docs.py"}, id="a module with a test of its name"),
        pytest.param("tests/server/test_gone.py", set[str](), id="a test that was deleted"),
        pytest.param("tests/examples/test_tokens.py", {"tests/examples/test_tokens.py"}, id="a test of an example"),
        pytest.param("examples/tokens.py", {TOP, "tests/examples/test_tokens.py"}, id="an example"),
        pytest.param("tests/vectors/keys.json", {TOP, "tests/pki/test_keys.py"}, id="a data vector"),
        pytest.param("tests/support/node/package.json", {TOP, "tests/client/test_node.py"}, id="a file of a folder"),
        pytest.param(
            "tests/support/program.py", {"tests/server/test_start.py"}, id="a program that is run by its name"
        ),
        pytest.param("docs/threats/index.md", {TOP, "tests/promises/test_threats.py"}, id="a page of a folder"),
        pytest.param("pyproject.toml", {TOP, "tests/server/test_library.py"}, id="a file at the top"),
        pytest.param("tests/pki/conftest.py", {"tests/pki/test_keys.py", "tests/pki/test_names.py"}, id="fixtures"),
    ],
)
def test_a_change_runs_the_tests_that_it_touches(changed: str, files: set[str]) -> None:
    assert {str(path) for path in affected([Path(changed)], TEXTS, graph())} == files


def test_names_of_files_and_imports() -> None:
    assert module_of(Path("src/mooring/authn/__init__.py")) == "mooring.authn"
    assert room_of("mooring.authn.chain") == "authn"
    assert room_of("mooring") == ""
    assert imports("import a.b\nfrom tests.support import peer, ports\n") == {
        "a.b", "tests.support", "tests.support.peer", "tests.support.ports",
    }  # fmt: skip


def test_a_run_that_a_signal_ended_counts() -> None:
    assert exit_code(-9) == 9
    assert exit_code(5) == exit_code(0) == 0


def test_scenarios_run_only_when_their_own_file_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    names = (
        "tests/test_docs.py",
        "tests/test_demo_live.py",
        "tests/compat/test_lightkube.py",
        "tests/test_report_live.py",
    )
    ran: list[list[str]] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        ran.append([word for word in command if word.startswith("tests/")])
        return SimpleNamespace(wait=lambda: None, returncode=5)

    monkeypatch.setattr("tests.changed.affected", lambda *_: {Path(name) for name in names})
    monkeypatch.setattr("tests.changed.changed_files", lambda: {Path("tests/test_report_live.py"), Path("docs/use.md")})
    monkeypatch.setattr("subprocess.Popen", run)
    monkeypatch.setattr("sys.argv", ["tests.changed"])
    assert main() == 0
    assert ran == [["tests/test_docs.py", "tests/test_report_live.py"]]


@pytest.mark.parametrize(
    "error",
    [SourceSyntaxError("src/mooring/x.py", 3, "def f(:"), UnicodeError("Failed to decode file x.py as UTF-8")],
    ids=["syntax", "encoding"],
)
def test_a_module_that_cannot_be_read_is_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(name: str) -> None:
        raise error

    monkeypatch.setattr("tests.changed.changed_files", set)
    monkeypatch.setattr("grimp.build_graph", build)
    assert main() == 2
    assert capsys.readouterr().err == f"error: {error}\n"


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of a larger repository, with one file; tests.changed takes it for its own."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    folder = tmp_path / "of" / "more"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text("1\n")
    author = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    for command in (("init", "--quiet"), ("add", "."), (*author, "commit", "--quiet", "--message", "a")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setattr("tests.changed.ROOT", folder)
    return folder


def test_names_are_below_the_clone(clone: Path) -> None:
    (clone / "a.py").write_text("2\n")
    (clone.parents[1] / "of another").write_text("")
    (clone / os.fsdecode(b"\xff b.md")).write_text("")
    assert changed_files() == {Path("a.py"), Path(os.fsdecode(b"\xff b.md"))}


def test_a_folder_without_a_repository_is_one_line(
    clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(tmp_path / ".git")
    assert main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: git does not say what changed: fatal: not a git repository")
