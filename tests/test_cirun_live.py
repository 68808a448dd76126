"""`.ci/run` ends with the sum of the tests alone on the last line, also when a stage ends the run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAKE = """#!/bin/bash
case "$1" in
  setup) mkdir -p .venv/bin; ln -sf "$PWD/python" .venv/bin/python;;
  check) {check};;
  test*) echo '{{"passed": 2, "skipped": {{"no slapd": 1}}}}' >"${{2#*--report }}"
esac
"""
PYTHON = """#!/bin/bash
case "$*" in
  *tests.report*) PYTHONPATH=. exec {python} "$@";;
  *tests.keystone*) {keystone}
esac
"""
ENDED = "the run ended here with exit code"


@pytest.mark.parametrize(
    ("check", "keystone", "code", "end"),
    [
        pytest.param("true", "true", 0, ["skipped 2: no slapd", "4 passed, 0 failed, 2 skipped"], id="all is well"),
        pytest.param(
            "exit 2",
            "exec sleep 60",
            2,
            [f"FAILED check: {ENDED} 2: what it printed says why", "0 passed, 1 failed, 0 skipped"],
            id="check fails while Keystone is installed",
        ),
        pytest.param(
            "kill -TERM $PPID",
            "true",
            143,
            [f"FAILED check: {ENDED} 1: what it printed says why", "0 passed, 1 failed, 0 skipped"],
            id="a signal",
        ),
        pytest.param(
            'rm -rf "$TMPDIR"; mkdir "$TMPDIR"; exit 2',
            "true",
            2,
            [f"FAILED check: {ENDED} 2: what it printed says why", "0 passed, 1 failed, 0 skipped"],
            id="nothing can be written",
        ),
        pytest.param(
            "rm .venv/bin/python; ln -s /bin/false .venv/bin/python; exit 2",
            "true",
            2,
            ["0 passed, 1 failed, 0 skipped"],
            id="no Python runs",
        ),
    ],
)
def test_the_last_line_is_the_sum(tmp_path: Path, check: str, keystone: str, code: int, end: list[str]) -> None:
    for folder in (".ci", "tests", "bin", "temporary"):
        (tmp_path / folder).mkdir()
    for name in (".ci/run", "tests/report.py", "tests/counts.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    programs = {"bin/make": MAKE.format(check=check), "python": PYTHON.format(python=sys.executable, keystone=keystone)}
    programs |= dict.fromkeys(("bin/apt-get", "bin/sudo", "bin/npm"), "#!/bin/sh\n")
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["bash", ".ci/run"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "TMPDIR": str(tmp_path / "temporary")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-len(end) :] == end, done.stdout
    assert abs(done.returncode) in {code, code - 128}
