"""`make test` and `make test-all` together read every file of tests, and none of them twice."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sharedrewriting import compile_all, share
from tests.tworuns import pytest_configure, pytest_ignore_collect

ROOT = Path(__file__).parents[1]
FILES = frozenset(ROOT.glob("tests/**/test_*.py"))


def read_with(expression: str) -> frozenset[Path]:
    """Return the files that a run with `-m expression` reads."""
    config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=expression))
    return frozenset(path for path in FILES if not pytest_ignore_collect(path, config))


def test_every_file_is_read_by_one_of_the_two_runs() -> None:
    runs = re.findall(r'-m ("not scenario"|scenario) ', (ROOT / "Makefile").read_text())
    assert sorted(runs) == ['"not scenario"', "scenario"]
    first, second = (read_with(run.strip('"')) for run in runs)
    assert first | second == FILES
    assert not first & second
    assert len(FILES) > len(first) > 100
    assert len(second) > 100


@pytest.mark.parametrize("expression", ["", "live", "hypothesis", "not client", "scenario and not client"])
def test_a_run_with_other_marks_reads_all(expression: str) -> None:
    assert read_with(expression) == FILES


def configure(expression: str, *arguments: str) -> None:
    """Configure a session in the folder of the clone."""
    config: Any = SimpleNamespace(
        args=arguments,
        invocation_params=SimpleNamespace(dir=ROOT),
        option=SimpleNamespace(markexpr=expression),
    )
    pytest_configure(config)


@pytest.mark.parametrize(
    ("argument", "found"),
    [
        pytest.param("tests", True, id="a folder"),
        pytest.param("tests/test_tworuns.py::test_a[x::y]", True, id="a test"),
        pytest.param("tests/test_typo.py", False, id="a wrong name"),
        pytest.param("tests/test_typo.py::test_a", False, id="a test of a wrong name"),
    ],
)
def test_a_path_that_is_not_there_is_named(argument: str, found: bool) -> None:
    if found:
        configure("", "tests", argument)
    else:
        with pytest.raises(pytest.UsageError, match=f"^file or directory not found: {argument}$"):
            configure("", "tests", argument)


@pytest.mark.parametrize(
    ("expression", "argument", "other"),
    [
        pytest.param("scenario", "tests/test_tworuns.py", "make test ", id="no scenario in make test-all"),
        pytest.param(
            "not scenario", "tests/../tests/test_demo_live.py::test_a", "make test-all ", id="one in make test"
        ),
        pytest.param("not scenario", "tests/compat/test_lightkube.py", "make test-all ", id="a folder of them"),
        pytest.param("scenario", "tests/test_demo_live.py", None, id="a scenario in make test-all"),
        pytest.param("not scenario", "tests/test_tworuns.py", None, id="none in make test"),
        pytest.param("scenario", "tests/server", None, id="a folder with both"),
        pytest.param("scenario", "pyproject.toml", None, id="a file of no folder of tests"),
        pytest.param("scenario and not client", "tests/test_tworuns.py", None, id="marks of another target"),
    ],
)
def test_a_file_that_the_target_leaves_out_is_named(expression: str, argument: str, other: str | None) -> None:
    if other is None:
        configure(expression, argument)
    else:
        with pytest.raises(pytest.UsageError, match=f"^{other}runs the tests of {argument}, not this target$"):
            configure(expression, argument)


def test_no_test_is_a_scenario_by_its_own_mark() -> None:
    """Neither run would have it: the one does not read its file, the other leaves out its mark."""
    marked = re.compile(r"^\s*(@|pytestmark\b.*)pytest\.mark\.scenario\b", re.MULTILINE)
    assert [path.name for path in read_with("not scenario") if marked.search(path.read_text())] == []


@pytest.mark.parametrize("workers", [1, 3, 4, 2000])
def test_workers_share_all_files_to_rewrite(workers: int) -> None:
    files = sorted(FILES)
    shares = [share(files, worker, workers) for worker in range(workers)]
    assert sorted(path for one in shares for path in one) == files


def test_a_file_that_cannot_be_imported_yet_is_left_to_the_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        "unready_mark": "import pytest; pytest.mark.of_the_folder",
        "unready_skip": "import pytest; pytest.skip('no program', allow_module_level=True)",
        "unready_text": "an error of syntax",
        "ready": "",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    compile_all(texts)
    assert sys.modules.keys() & texts.keys() == {"ready"}
    del sys.modules["ready"]
