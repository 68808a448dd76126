"""A worker with a failed test says what it ran until then, and the same tests run again in the same order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.replay import fingerprint, numbers, ranges

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest

seen = []

@pytest.mark.parametrize("number", range(40))
def test_it(number):
    seen.append(number)
    assert not {3, 30} <= set(seen), seen
"""
CONFTEST = 'pytest_plugins = ["tests.replay", "tests.orders"]\n'


@pytest.mark.parametrize(
    ("given", "text"),
    [
        pytest.param([0, 1, 2, 3], "0-3", id="a run"),
        pytest.param([0, 1, 9, 7, 8], "0-1,9,7-8", id="in their order"),
        pytest.param([5, 5, 6], "5,5-6", id="a second try"),
        pytest.param([4], "4", id="one"),
    ],
)
def test_numbers_are_shortened_and_read_again(given: list[int], text: str) -> None:
    assert ranges(given) == text
    assert numbers(text) == given


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def session(folder: Path, *flags: str, tests: str = TESTS) -> subprocess.CompletedProcess[str]:
    """Run a session below a folder of its own, whose plugins a conftest loads, as here."""
    (folder / "tests_of_it").mkdir()
    (folder / "pyproject.toml").write_text('[tool.pytest.ini_options]\ntestpaths = ["tests_of_it"]\n')
    (folder / "tests_of_it/conftest.py").write_text(CONFTEST)
    (folder / "tests_of_it/test_it.py").write_text(tests)
    return python(folder, "pytest", "-q", "-p", "no:cacheprovider", *flags)


@pytest.mark.parametrize(
    "flags",
    [(), ("-n", "1"), ("-n", "1", "-p", "no:randomly"), ("-k", "test_it", "tests_of_it/test_it.py"), ("--orders", "2")],
    ids=["one process", "a worker", "without randomly", "a selection", "two orders"],
)
def test_what_a_worker_ran_is_run_again_in_its_order(tmp_path: Path, flags: tuple[str, ...]) -> None:
    first = session(tmp_path, *flags)
    (line,) = (line for line in first.stdout.splitlines() if line.startswith("make replay FILE=.replay/"))
    document = json.loads(line.partition("# ")[2])
    file = line.split()[2].removeprefix("FILE=")
    assert json.loads((tmp_path / file).read_text()) == document
    again = python(tmp_path, "tests.replay", file, "-q")
    assert again.returncode == 1, again.stdout + again.stderr
    ran = len(numbers(document["ran"]))
    assert f"{ran - again.stdout.count('FAILED')} passed" in again.stdout
    failed = {line for line in first.stdout.splitlines() if line.startswith("FAILED")}
    assert failed == {line for line in again.stdout.splitlines() if line.startswith("FAILED")}, "with the same lists"


def test_what_decides_the_tests_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = (
        "import os\nimport pytest\n"
        "SEEDS = os.environ.get('MOORING_FAULT_SEEDS', '1-2-3').split('-')\n"
        "@pytest.mark.parametrize('seed', SEEDS)\ndef test_it(seed):\n    assert seed != '9', os.environ.get('CI')\n"
    )
    monkeypatch.setenv("MOORING_FAULT_SEEDS", "8-9")
    monkeypatch.delenv("CI", raising=False)
    session(tmp_path, "-p", "no:randomly", tests=tests)
    monkeypatch.delenv("MOORING_FAULT_SEEDS")
    monkeypatch.setenv("CI", "true")
    again = python(tmp_path, "tests.replay", ".replay/main.json", "-q")
    assert "AssertionError: None" in again.stdout, again.stdout + again.stderr
    assert "1 failed, 1 passed" in again.stdout


def test_a_file_of_an_earlier_session_stays(tmp_path: Path) -> None:
    session(tmp_path, "-p", "no:randomly", tests="def test_it():\n    assert False\n")
    first = (tmp_path / ".replay/main.json").read_text()
    (tmp_path / "tests_of_it/test_it.py").write_text("def test_other():\n    assert False\n")
    done = python(tmp_path, "pytest", "-q", "-p", "no:cacheprovider")
    assert "make replay FILE=.replay/main-2.json" in done.stdout
    assert (tmp_path / ".replay/main.json").read_text() == first
    assert (tmp_path / ".replay/main-2.json").read_text() != first


def test_where_no_file_can_be_written_its_text_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".replay").write_text("a file")
    done = session(tmp_path, "-p", "no:randomly", tests="def test_it():\n    assert False\n")
    (line,) = (line for line in done.stdout.splitlines() if "to replay, write one of {" in line)
    assert "1 failed" in done.stdout
    (tmp_path / "file.json").write_text(line.partition("write one of ")[2])
    again = python(tmp_path, "tests.replay", "~/file.json", "-q")
    assert "1 failed" in again.stdout, again.stderr


def test_a_worker_that_crashed_says_what_it_ran(tmp_path: Path) -> None:
    names = ("a", "b", "c", "d")
    tests = "".join(f"def test_{name}():\n    pass\n" for name in names)
    crashes = "import os\n" + tests.replace("b():\n    pass", "b():\n    os._exit(3)")
    done = session(tmp_path, "-n", "1", "-p", "no:randomly", tests=crashes)
    assert "crashed while running" in done.stdout
    document = json.loads((tmp_path / ".replay/gw0.json").read_text())
    assert document["ran"] == "0-1"


def test_a_file_of_other_tests_is_refused(tmp_path: Path) -> None:
    session(tmp_path)
    other = {
        "seed": 7, "selection": [], "paths": [], "tests": 3, "fingerprint": fingerprint(["a"]), "ran": "0-2",
    }  # fmt: skip
    (tmp_path / "file.json").write_text(json.dumps(other))
    done = python(tmp_path, "tests.replay", "file.json")
    assert done.returncode == 4
    assert "file.json is of a session with 3 tests, and here are 40, or others" in done.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "error: which file? make replay FILE=.replay/gw0.json"),
        (("none.json",), "error: none.json: No such file or directory"),
        (("list.json",), "error: list.json: not a file that a session wrote"),
        (("half.json",), "error: half.json: not a file that a session wrote"),
        (("number.json",), "error: number.json: not a file that a session wrote"),
        (("home.json",), "error: home.json: not a file that a session wrote"),
        (("text.json",), "error: text.json: not a file that a session wrote"),
        (("octets.json",), "error: octets.json: not a file that a session wrote"),
        (("many.json",), "error: many.json: not a file that a session wrote"),
    ],
    ids=[
        "no file",
        "a file that is not there",
        "another file",
        "a line that was copied in part",
        "no words",
        "a variable",
        "no JSON",
        "no text",
        "more tests than there can be",
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, words: tuple[str, ...], line: str) -> None:
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "half.json").write_text('{"seed": 1, "workers": 2, "selection": [], "paths": [], "tests": 3}')
    whole = {"seed": 1, "workers": 2, "selection": [], "paths": [], "tests": 3, "fingerprint": 1, "ran": "0"}
    (tmp_path / "number.json").write_text(json.dumps({**whole, "selection": [3]}))
    (tmp_path / "home.json").write_text(json.dumps({**whole, "environment": {"HOME": "/nowhere"}}))
    (tmp_path / "text.json").write_text("# Mooring")
    (tmp_path / "octets.json").write_bytes(b"\xff\xfe")
    (tmp_path / "many.json").write_text(json.dumps({**whole, "ran": "0-9999999999"}))
    done = python(tmp_path, "tests.replay", *words)
    assert (done.returncode, done.stderr) == (2, f"{line}\n")
