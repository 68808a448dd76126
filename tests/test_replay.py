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


def session(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    plugins = ("-p", "tests.replay", "-p", "no:cacheprovider")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, *flags, "test_it.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one process", "a worker"])
def test_what_a_worker_ran_is_run_again_in_its_order(tmp_path: Path, workers: tuple[str, ...]) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    first = session(tmp_path, "--randomly-seed=7", *workers)
    (line,) = (line for line in first.stdout.splitlines() if line.startswith("make replay FILE=.replay/"))
    document = json.loads(line.partition("# ")[2])
    assert json.loads((tmp_path / line.split()[2].removeprefix("FILE=")).read_text()) == document
    (tmp_path / "file.json").write_text(json.dumps(document))
    again = session(tmp_path, "--randomly-seed=7", "--replay", "file.json")
    assert again.returncode == 1
    assert f"{len(numbers(document['ran'])) - again.stdout.count('FAILED')} passed" in again.stdout


def test_a_file_of_other_tests_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    other = {"seed": 7, "expression": "", "tests": 3, "fingerprint": fingerprint(["a"]), "ran": "0-2"}
    (tmp_path / "file.json").write_text(json.dumps(other))
    done = session(tmp_path, "--randomly-seed=7", "--replay", "file.json")
    assert done.returncode == 4
    assert "file.json is of a session with 3 tests, and here are 40, or others" in done.stderr
