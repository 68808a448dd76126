"""`pytest --orders N`: every live test runs in every order, and every row of a table in at least one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.orders import shared
from tests.support import liveserver
from tests.support.liveserver import LiveServer

ROOT = Path(__file__).parents[1]
TESTS = """
import pathlib
import pytest


@pytest.fixture(autouse=True)
def ran(request):
    with pathlib.Path("ran").open("a") as file:
        file.write(request.node.name + "\\n")


@pytest.mark.live
class TestLive:
    def test_plain(self):
        pass

    @pytest.mark.parametrize("number", range(6))
    def test_table(self, number):
        pass

    @pytest.mark.sweep
    def test_sweep(self):
        pass


def test_pure():
    pass
"""

NAMES = ["a", "b[1]", "b[2]", "b[3]", "b[4]", "c[x]", "c[y]", "d[only]"]


@pytest.mark.parametrize(
    ("number", "shares", "kept"),
    [
        pytest.param(1, 3, {"a", "b[1]", "b[4]", "c[x]", "d[only]"}, id="the first third"),
        pytest.param(2, 3, {"a", "b[2]", "c[y]", "d[only]"}, id="the second third"),
        pytest.param(3, 3, {"a", "b[3]", "c[x]", "d[only]"}, id="a table of two rows runs one of them again"),
        pytest.param(1, 1, set(NAMES), id="everything"),
    ],
)
def test_a_share_has_its_rows_of_every_table(number: int, shares: int, kept: set[str]) -> None:
    assert shared(reversed(NAMES), number, shares) == kept


def test_the_shares_together_are_all_tests() -> None:
    assert set().union(*(shared(NAMES, number, 3) for number in (1, 2, 3))) == set(NAMES)


def run(place: Path, *arguments: str) -> str:
    """Run the tests of TESTS in three orders, in one process."""
    (place / "conftest.py").write_text('pytest_plugins = ["tests.orders"]\n')
    (place / "pytest.ini").write_text("[pytest]\nmarkers =\n  live\n  sweep\n")
    (place / "test_it.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--orders", "3", *arguments],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


TABLE = {f"test_table[{number}]": 1 for number in range(6)}


def test_live_tests_are_dealt_in_each_order_and_the_others_once(tmp_path: Path) -> None:
    dealt = Counter(line.rpartition("::")[2] for line in run(tmp_path, "--collect-only").splitlines() if "::" in line)
    assert dealt == {"test_plain": 3, "test_sweep": 1, "test_pure": 1, **TABLE}


def test_one_worker_runs_a_live_test_in_each_order(tmp_path: Path) -> None:
    run(tmp_path)
    ran = Counter((tmp_path / "ran").read_text().split())
    assert ran == {"test_plain": 3, "test_sweep": 1, "test_pure": 1, **TABLE}


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
