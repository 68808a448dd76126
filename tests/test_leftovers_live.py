"""A test that leaves a socket open fails, and no other; a live test that fails is tried again, and is listed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.secondtries import LIVE_SUPPORT, TRIES
from tests.support import liveserver
from tests.support.liveserver import LiveServer

ROOT = Path(__file__).parents[1]


def run(folder: Path, text: str, *flags: str, stdin: int | None = None) -> tuple[int, str]:
    """Run one file of tests in a session of its own. Return its exit code and output."""
    settings = '[tool.pytest.ini_options]\nfilterwarnings = ["error"]\nmarkers = ["live", "scenario"]\n'
    (folder / "pyproject.toml").write_text(settings)
    (folder / "test_it.py").write_text(text)
    plugins = ("-p", "tests.leftovers", "-p", "no:randomly", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, *flags, "test_it.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


LEAKS = """
import socket

kept = []

class Cycle:
    pass

def leave(one):
    cycle = Cycle()
    cycle.itself, cycle.socket = cycle, one

def test_opens():
    leave(socket.socket())

def test_after():
    pass
"""
HELD = """
import gc, socket

kept = []

def test_opens():
    kept.append(socket.socket())

def test_after():
    kept.clear()
    gc.collect()
"""


def test_the_test_that_leaves_a_socket_open_is_the_one_that_fails(tmp_path: Path) -> None:
    code, output = run(tmp_path, LEAKS)
    assert code == 1
    assert "ERROR test_it.py::test_opens" in output
    assert "LeftOpenError: the test did not close what it opened" in output
    assert "2 passed, 1 error" in output


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one process", "with a worker"])
@pytest.mark.parametrize(("flags", "expected"), [((), 0), (("--fail-on-leftovers",), 1)], ids=["listed", "fatal"])
def test_a_socket_that_an_earlier_test_held_is_listed_with_that_test(
    tmp_path: Path, workers: tuple[str, ...], flags: tuple[str, ...], expected: int
) -> None:
    code, output = run(tmp_path, HELD, *workers, *flags)
    assert code == expected, output
    assert "1 thing left open by earlier tests" in output
    assert "test_it.py::test_opens: unclosed <socket.socket fd=" in output
    assert "(found during test_it.py::test_after)" in output
    assert "2 passed" in output


OF_EARLIER = """
import gc, os, socket, subprocess, sys
import pytest

kept = {}

class Cycle:
    pass

def leave(one):
    cycle = Cycle()
    cycle.itself, cycle.one = cycle, one

@pytest.fixture(scope="module")
def shared():
    one = socket.socket()
    yield one
    one.close()

def test_leaves_a_process():
    leave(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5)"]))

def test_is_healthy(shared):
    pass

def test_keeps_a_file():
    kept["file"] = open(os.devnull)

def test_drops_it():
    kept.clear()
    gc.collect()

def test_keeps_a_socket():
    kept["socket"] = socket.socket()

def test_takes_its_number():
    number = kept["socket"].fileno()
    kept["socket"].close()
    leave(socket.socket())
"""


def test_a_healthy_test_is_not_failed_for_what_another_left(tmp_path: Path) -> None:
    code, output = run(tmp_path, OF_EARLIER)
    assert code == 1
    failed = [line.partition(" - ")[0] for line in output.splitlines() if line.startswith(("FAILED", "ERROR "))]
    assert failed == ["ERROR test_it.py::test_takes_its_number"], output
    assert "test_it.py::test_keeps_a_file: unclosed file" in output


PARSES_WHEN_COLLECTED = """
import ast, gc
import pytest

class Parses:
    def __init__(self):
        self.itself = self

    def __del__(self):
        if gc.get_threshold()[0] == 1:
            ast.parse("1 + 1")
            Parses()

@pytest.fixture
def collected_often():
    before = gc.get_threshold()
    gc.set_threshold(1)
    Parses()
    yield
    gc.set_threshold(*before)

def test_fails(collected_often):
    assert 1 == 2

def test_after():
    pass
"""


def test_garbage_that_parses_python_does_not_end_the_session(tmp_path: Path) -> None:
    code, output = run(tmp_path, PARSES_WHEN_COLLECTED)
    assert "INTERNALERROR" not in output
    assert code == 1
    assert "assert 1 == 2" in output
    assert "1 failed, 1 passed" in output


PROCESSES = """
import gc, subprocess, sys

kept = []
PROGRAM = [sys.executable, "-c", "import sys; sys.stdin.read()"]

def test_keeps_a_process():
    kept.append(subprocess.Popen(PROGRAM, stdin=sys.__stdin__))

def test_drops_it():
    kept.clear()
    gc.collect()

def test_leaves_a_process():
    process = subprocess.Popen(PROGRAM, stdin=sys.__stdin__)
    kept.append([process])
    kept[-1].append(kept.pop())

def test_is_healthy():
    gc.collect()
"""


def test_a_process_that_was_not_waited_for_is_of_the_test_that_started_it(tmp_path: Path) -> None:
    read, write = os.pipe()
    code, output = run(tmp_path, PROCESSES, stdin=read)
    os.close(read)
    os.close(write)
    assert code == 0, output
    assert "2 things left open by earlier tests" in output
    assert "test_it.py::test_keeps_a_process: subprocess " in output
    assert "test_it.py::test_leaves_a_process: subprocess " in output
    assert "4 passed" in output


FAILS_AT_FIRST = """
import pytest
from tests.support.ports import free_port

tries = []

@pytest.mark.parametrize("needed", [1, 2, 3, 9])
def test_it(needed):
    tries.append(needed)
    assert tries.count(needed) == needed, f"try {tries.count(needed)}"
"""


def test_a_live_test_is_tried_three_times_and_listed_with_its_first_failure(tmp_path: Path) -> None:
    code, output = run(tmp_path, FAILS_AT_FIRST, "-p", "tests.secondtries")
    assert code == 1
    assert "3 tests needed a second try" in output
    assert "test_it.py::test_it[2]: call: AssertionError: try 1" in output
    first = output.partition("first failures of tests that needed a second try")[2]
    assert first.count(">       assert tries.count(needed) == needed") == 3, "each with the lines around it"
    assert "try 2" not in first.partition("needed a second try")[0]
    assert "FAILED test_it.py::test_it[9]" in output
    assert "1 failed, 3 passed, 5 rerun" in output
    assert TRIES == 2


def test_another_test_is_not_tried_again(tmp_path: Path) -> None:
    text = FAILS_AT_FIRST.replace("from tests.support.ports import free_port\n", "")
    code, output = run(tmp_path, text, "-p", "tests.secondtries")
    assert code == 1
    assert "3 failed, 1 passed" in output
    assert "rerun" not in output


def test_the_modules_of_live_tests_exist() -> None:
    assert {name for name in LIVE_SUPPORT if not (ROOT / f"tests/support/{name}.py").exists()} <= {"faultlib"}
    assert (ROOT / "tests/support/faultlib").is_dir()


def test_a_test_that_runs_again_gets_a_server_that_it_has_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setattr(liveserver, "start_server", lambda directory: directory)
    servers = liveserver.SharedServers(tmp_path_factory)
    first, again, third = (servers.of("a", "") for _ in range(3))
    assert len({first, again, third}) == 3
    assert [servers.of("b", "") for _ in range(2)] == [first, again]
    assert servers.of("a", "a file with servers of its own") not in (first, again, third)


def test_the_servers_of_a_file_are_stopped_when_another_file_with_its_own_has_its_turn(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stopped: list[LiveServer] = []
    no_process: Any = None
    monkeypatch.setattr(liveserver, "start_server", lambda directory: LiveServer(directory, 0, no_process))
    monkeypatch.setattr(LiveServer, "stop", lambda server: stopped.append(server))
    servers = liveserver.SharedServers(tmp_path_factory)
    everybodys = servers.of("a", "")
    own = [servers.of("a", "one file") for _ in range(2)]
    assert stopped == []
    another = servers.of("b", "another file")
    assert stopped == own
    assert servers.of("b", "") is everybodys
    servers.stop()
    assert stopped == [*own, everybodys, another]
