"""`make demo` on a machine whose environment leads elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ELSEWHERE = {
    **{f"{scheme}_proxy": "http://127.0.0.1:9" for scheme in ("http", "https", "all")},
    "LC_ALL": "C",
    "MOORING_CONFIG": "/nowhere",
    "MOORING_ETCD_SERVERS": "http://127.0.0.1:9",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
}


def test_the_demo_needs_no_proxy_no_locale_and_no_settings(tmp_path: Path) -> None:
    variables = {**os.environ, **ELSEWHERE, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.demo"], cwd=ROOT, env=variables, capture_output=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert b"nothing is left running" in done.stdout
    # The finding, and the end of the copy.
    for part in (b"Warning DuplicateIdentity machine-1: two machines", b"machine-1 split", b"401 Unauthorized"):
        assert part in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_demo_says_where_room_is_missing(tmp_path: Path) -> None:
    program = (
        "import shutil; from types import SimpleNamespace\n"
        "shutil.disk_usage = lambda folder: SimpleNamespace(free=5 << 20)\n"
        "from tests.demo import main; main()"
    )
    variables = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert f"failed  5 MB are left for {tmp_path}" in done.stdout
    assert "16 MB are needed: make room, or choose another TMPDIR\n" in done.stdout
    assert list(tmp_path.iterdir()) == []
