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
    assert list(tmp_path.iterdir()) == []
