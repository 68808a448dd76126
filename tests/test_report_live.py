"""The last lines of a run say which stage took how long, what failed and what was left out; the very last is the sum."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.report import MOST_LINES, Report, lines, read, total
from tests.steady import unsteady

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest

def test_passes():
    pass

def test_fails():
    assert 1 == 2

@pytest.fixture
def broken():
    raise OSError("no disk")

def test_breaks(broken):
    pass

@pytest.mark.skip(reason="no slapd")
@pytest.mark.parametrize("one", [1, 2])
def test_is_left_out(one):
    pass
"""


def test_a_run_writes_its_end_and_the_command_prints_it(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    plugins = ("-p", "tests.leftovers", "-p", "tests.report", "-p", "no:randomly", "-p", "no:cacheprovider")
    command = (sys.executable, "-m", "pytest", "-q", *plugins, "--report", str(tmp_path / "one.json"), "test_it.py")
    subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, check=False)
    found = read(tmp_path / "one.json")
    assert found is not None
    assert found.passed == 1
    assert found.skipped == {"no slapd": 2}
    assert found.failed == {
        "test_it.py::test_fails": "call: assert 1 == 2",
        "test_it.py::test_breaks": "setup: OSError: no disk",
    }
    (tmp_path / "stages").write_text("75 check\n600 test\n")
    end = (sys.executable, "-m", "tests.report", "stages", "one.json", "missing.json")
    printed = subprocess.run(
        end, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    assert printed.stdout.splitlines() == [
        "",
        "== what took how long",
        "  1:15  check",
        " 10:00  test",
        "FAILED test_it.py::test_fails: call: assert 1 == 2",
        "FAILED test_it.py::test_breaks: setup: OSError: no disk",
        "FAILED a run of tests ended before its report",
        "skipped 2: no slapd",
        "1 passed, 3 failed, 2 skipped",
    ]


HANGS = """
import threading
import pytest

@pytest.mark.scenario
def test_hangs(tries=[]):
    tries.append(1)
    assert len(tries) > 1, "the first try"
    threading.Event().wait()
"""
TRIED_AGAIN = """
import pytest
from tests.support.ports import free_port

tries = []

@pytest.fixture
def ends_badly():
    yield
    tries.append(1)
    assert len(tries) > 1, "the first end"

def test_passes_at_last(ends_badly):
    pass

def test_passes_and_ends_badly(request):
    request.addfinalizer(lambda: 1 / 0)

def test_needs_what_is_not_there(no_such_fixture):
    pass

@pytest.mark.skip(reason="one\\ntwo")
def test_is_left_out():
    pass
"""


def test_a_test_counts_once_and_a_worker_is_not_the_cause(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["live", "scenario"]\n')
    (tmp_path / "test_it.py").write_text(TRIED_AGAIN)
    plugins = ("-p", "tests.leftovers", "-p", "tests.report", "-p", "tests.secondtries", "-p", "no:cacheprovider")
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "1",
        *plugins,
        "--report",
        str(tmp_path / "one.json"),
        "test_it.py",
    )
    subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, check=False)
    found = read(tmp_path / "one.json")
    assert found is not None
    assert (found.passed, found.exit_code, found.skipped) == (1, 1, {"one": 1})
    assert found.failed == {
        "test_it.py::test_passes_and_ends_badly": "teardown: ZeroDivisionError: division by zero",
        "test_it.py::test_needs_what_is_not_there": "setup: fixture 'no_such_fixture' not found",
    }
    assert found.second_tries["test_it.py::test_passes_at_last"] == "teardown: AssertionError: the first end"


def test_a_second_try_that_never_ends_is_ended(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["live", "scenario"]\ntimeout = 1\n')
    (tmp_path / "test_it.py").write_text(HANGS)
    plugins = ("-p", "tests.leftovers", "-p", "tests.report", "-p", "tests.secondtries", "-p", "no:cacheprovider")
    command = (sys.executable, "-m", "pytest", *plugins, "--report", str(tmp_path / "one.json"), "test_it.py")
    subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, check=False, timeout=60)
    found = read(tmp_path / "one.json")
    assert found is not None
    assert [line.partition(" ")[0] for line in found.failed.values()] == ["call:"]
    assert found.second_tries["test_it.py::test_hangs"] == "call: AssertionError: the first try"


def test_a_run_that_failed_without_a_failed_test_is_a_failure() -> None:
    gate = Report(passed=2, exit_code=1)
    assert total([gate]) == "2 passed, 1 failed, 0 skipped"
    assert lines([], [gate])[1].startswith("FAILED a run in which no test failed ended with an error (exit code 1)")


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        pytest.param(Report(passed=2), False, id="all passed"),
        pytest.param(Report(passed=2, second_tries={"a": "b"}), True, id="a second try"),
        pytest.param(Report(passed=2, left_open=1), True, id="something was left open"),
        pytest.param(Report(exit_code=5), True, id="no test ran"),
        pytest.param(Report(passed=2, exit_code=3), True, id="pytest failed"),
        pytest.param(None, True, id="no report"),
    ],
)
def test_what_make_steady_calls_unsteady(report: Report | None, expected: bool) -> None:
    assert unsteady(report) is expected


def test_a_run_that_wrote_half_a_report_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"passed": 3')
    assert read(tmp_path / "half.json") is None
    assert total([None, Report(passed=2)]) == "2 passed, 1 failed, 0 skipped"


def test_second_tries_and_open_descriptors_are_listed() -> None:
    report = Report(passed=1, second_tries={"b": "call: late", "a": "setup: late"}, left_open=2)
    assert lines([], [report])[1:] == [
        "2 tests needed a second try:",
        "  a: setup: late",
        "  b: call: late",
        "2 things left open by earlier tests",
    ]


def test_one_thing_is_not_many() -> None:
    report = Report(passed=1, second_tries={"a": "setup: late"}, left_open=1)
    assert lines([], [report])[1:] == [
        "1 test needed a second try:",
        "  a: setup: late",
        "1 thing left open by earlier tests",
    ]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        pytest.param("75 check", "  1:15  check", id="a stage"),
        pytest.param("che", "  ?:??  che", id="half a line, of a full disk"),
        pytest.param("\xb2 check", "  ?:??  \\xb2 check", id="not UTF-8"),
    ],
)
def test_a_stage_without_a_time_does_not_hide_the_sum(line: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / "stages").write_bytes(line.encode("latin-1"))
    done = subprocess.run(
        [sys.executable, "-m", "tests.report", tmp_path / "stages"],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [shown, "0 passed, 0 failed, 0 skipped"]


def test_many_failures_are_cut_so_that_the_stages_and_the_sum_are_among_the_last_lines() -> None:
    failed = {f"test_{number}": "x" * 500 for number in range(200)}
    printed = lines(["  0:01  check"], [Report(failed=failed)])
    assert len(printed) + 1 < MOST_LINES
    assert printed[1] == "  0:01  check"
    assert printed[-1].startswith("... and ")
    assert max(map(len, printed)) <= 200
